"""The calls of `calls`, made: PyCUDA holds the context and the memory, cuda-bindings loads, launches and makes graphs.

PyCUDA keeps a stack of contexts a thread, and aborts the process where one is not empty at the end: it is pushed only
round an allocation. Elsewhere the context is made current through cuda-bindings, as the CUDA runtime does it. Tile maps
are encoded by the driver's function itself: it wants them on multiples of 64 bytes, where cuda-bindings does not put them.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from loopfuse.cuda.calls import (
    TILE_MAP_BYTES,
    Array,
    DriverError,
    Graph,
    Grid,
    Handle,
    OutOfMemory,
    no_context_after_fork,
)
from loopfuse.diag import MachineError
from loopfuse.dtypes import DType

LEAST_DRIVER = 13000
LEAST_CAPABILITY = (8, 0)
# What every program can do instead; what needs a GPU leaves it out of the message (`engine.needed`).
REFERENCE = "or run on the reference interpreter (--backend reference)"
UNAVAILABLE = ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN", "CUDA_ERROR_INVALID_DEVICE")
DEFAULT_SHARED = 48 << 10  # what a kernel may take without asking
PORTABLE_CLUSTER = 8
TILE_TYPES = {"bool": "UINT8", "u8": "UINT8", "i8": "UINT8", "u16": "UINT16", "i16": "UINT16", "u32": "UINT32",
              "i32": "INT32", "u64": "UINT64", "i64": "INT64", "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32",
              "f64": "FLOAT64"}  # fmt: skip


def connect(ordinal: int) -> Nvidia:
    """The driver of a GPU, its primary context retained. Raises `MachineError` that says what is missing."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as why:
        raise MachineError(f"no NVIDIA driver was found ({why}): install one, {REFERENCE}") from why
    try:
        from cuda.bindings import driver as cu
    except ImportError as why:
        raise MachineError(f"the package cuda-bindings is missing ({why}): pip install 'loopfuse[cuda]'") from why
    try:
        import pycuda.driver as pycuda
    except ImportError as why:
        raise MachineError(f"PyCUDA is missing or does not load ({why}): pip install 'loopfuse[cuda]'") from why
    _begin(cu)
    count = _result(cu, "cuDeviceGetCount")
    if not 0 <= ordinal < count:
        raise MachineError(f"there is no GPU {ordinal}: this machine has {count}, counted from 0")
    pycuda.init()
    return Nvidia(ordinal, cu, pycuda)


def _begin(cu: Any) -> None:
    """Initialise the driver, and refuse one that is too old."""
    (status,) = cu.cuInit(0)
    name = status.name
    if name == "CUDA_ERROR_NOT_INITIALIZED":
        raise no_context_after_fork()
    if name in ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE"):
        raise MachineError(f"there is no NVIDIA GPU that this process may use (CUDA_VISIBLE_DEVICES?), {REFERENCE}")
    if status != 0:
        raise MachineError(f"the NVIDIA driver does not start ({name}): see nvidia-smi, {REFERENCE}")
    version = _result(cu, "cuDriverGetVersion")
    if version < LEAST_DRIVER:
        raise MachineError(f"the NVIDIA driver knows CUDA {version // 1000}.{version % 1000 // 10}, and 13.0 is needed: "
                           f"install driver 580 or later, {REFERENCE}")  # fmt: skip


def _result(cu: Any, call: str, *arguments: Any) -> Any:
    """What a call gives. Raises `DriverError` with the name of its error."""
    status, *values = getattr(cu, call)(*arguments)
    if status != 0:
        raise (OutOfMemory if status.name == "CUDA_ERROR_OUT_OF_MEMORY" else DriverError)(call, status.name)
    return values[0] if len(values) == 1 else tuple(values)


class Nvidia:
    """See `calls.Driver`."""

    def __init__(self, ordinal: int, cu: Any, pycuda: Any) -> None:
        self._cu, self._pycuda = cu, pycuda
        self._live: dict[int, Any] = {}  # PyCUDA's objects free themselves when they go: nothing else holds them
        self._dead = False
        device = _result(cu, "cuDeviceGet", ordinal)
        self._device = device
        self.ordinal = ordinal
        self.name = _result(cu, "cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        self.uuid = bytes(_result(cu, "cuDeviceGetUuid", device).bytes).hex()
        self.memory = int(_result(cu, "cuDeviceTotalMem", device))
        self.capability = (self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR"))
        if self.capability < LEAST_CAPABILITY:
            raise MachineError(f"{self.name} has compute capability {'.'.join(map(str, self.capability))}, and 8.0 is "
                               f"the least that is supported; take another GPU, {REFERENCE}")  # fmt: skip
        self._context = self._retain()
        self._number = int(self._context.handle)
        self._handle = cu.CUcontext(self._number)
        self._current = cu.cuCtxGetCurrent

    def _retain(self) -> Any:
        """PyCUDA's object of the primary context. It is retained for a moment beside, to learn why where it fails."""
        try:
            _result(self._cu, "cuDevicePrimaryCtxRetain", self._device)
        except OutOfMemory as why:
            raise MachineError(
                f"{self.name} has no memory left for a context: see nvidia-smi for who holds it"
            ) from why
        except DriverError as why:
            reason = "another process has it for itself (compute mode EXCLUSIVE_PROCESS or PROHIBITED)"
            reason = reason if why.name in UNAVAILABLE else "the driver refuses"
            raise MachineError(f"{self.name} gives no context ({why.name}): {reason}; see nvidia-smi") from why
        context = self._pycuda.Device(self.ordinal).retain_primary_context()
        self._cu.cuDevicePrimaryCtxRelease(self._device)
        return context

    def attribute(self, name: str) -> int:
        """See `Driver`."""
        attribute = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        return -1 if attribute is None else int(_result(self._cu, "cuDeviceGetAttribute", attribute, self._device))

    # -- the context -------------------------------------------------------------------------------------------------

    def enter(self) -> bool:
        """See `Driver`. A thread without a context keeps this one, which costs nothing at the next call."""
        status, current = self._current()
        held = int(current) if status == 0 else 0
        if held == self._number:
            return False
        if held:
            self._call("cuCtxPushCurrent", self._handle)
            return True
        self._call("cuCtxSetCurrent", self._handle)
        return False

    def leave(self) -> None:
        """See `Driver`."""
        self._call("cuCtxPopCurrent")

    def _call(self, call: str, *arguments: Any) -> Any:
        if self._dead:
            raise DriverError(call, "CUDA_ERROR_CONTEXT_IS_DESTROYED")
        return _result(self._cu, call, *arguments)

    @contextlib.contextmanager
    def _pushed(self) -> Iterator[None]:
        self._context.push()
        try:
            yield
        finally:
            self._pycuda.Context.pop()

    # -- memory ------------------------------------------------------------------------------------------------------

    def alloc(self, count: int) -> int:
        """See `Driver`."""
        if self._dead:
            raise DriverError("cuMemAlloc", "CUDA_ERROR_CONTEXT_IS_DESTROYED")
        try:
            with self._pushed():
                made = self._pycuda.mem_alloc(count)
        except self._pycuda.MemoryError as why:
            raise OutOfMemory("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY") from why
        except self._pycuda.Error as why:
            raise self._told("cuMemAlloc", why) from why
        pointer = int(made)
        self._live[pointer] = made
        return pointer

    def _told(self, call: str, why: Exception) -> DriverError:
        """PyCUDA says what went wrong in words: the driver is asked for the name of a context that is lost."""
        (status,) = self._cu.cuCtxSynchronize()
        return DriverError(call, status.name if status != 0 else str(why))

    def free(self, pointer: int) -> None:
        """See `Driver`."""
        made = self._live.pop(pointer, None)
        if made is None:
            return
        if self._dead:
            _leak(made)
            return
        with self._pushed():
            made.free()

    def memory_info(self) -> tuple[int, int]:
        """See `Driver`."""
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def fill(self, pointer: int, byte: int, count: int, stream: int) -> None:
        """See `Driver`."""
        if count:
            self._call("cuMemsetD8Async", pointer, byte, count, stream)

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """See `Driver`. Memory that is not pinned is staged by the driver before this returns."""
        if array.nbytes:
            self._call("cuMemcpyHtoDAsync", pointer, address(array), array.nbytes, stream)

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """See `Driver`."""
        if array.nbytes:
            self._call("cuMemcpyDtoHAsync", address(array), pointer, array.nbytes, stream)
        self.synchronize(stream)

    def copy(self, target: int, source: int, count: int, stream: int) -> None:
        """See `Driver`."""
        if count:
            self._call("cuMemcpyDtoDAsync", target, source, count, stream)

    # -- kernels -----------------------------------------------------------------------------------------------------

    def load(self, binary: bytes) -> Handle:
        """See `Driver`. PyCUDA shows no handles of functions, which launches need."""
        return self._call("cuModuleLoadData", binary)

    def unload(self, module: Handle) -> None:
        """See `Driver`."""
        if not self._dead:
            self._call("cuModuleUnload", module)

    def function(self, module: Handle, name: str, shared: int, cluster: int) -> Handle:
        """See `Driver`."""
        function = self._call("cuModuleGetFunction", module, name.encode())
        attributes = self._cu.CUfunction_attribute
        if shared > DEFAULT_SHARED:
            dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", function, dynamic, shared)
        if cluster > PORTABLE_CLUSTER:
            self._call(
                "cuFuncSetAttribute", function, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1
            )
        return function

    def launcher(self, function: Handle, grid: Grid, threads: int, shared: int, stream: int, parameters: int,
                 ) -> Callable[[], None]:  # fmt: skip
        """See `Driver`."""
        x, y, z = grid
        launch, on = self._cu.cuLaunchKernel, self._cu.CUstream(stream)

        def run() -> None:
            (status,) = launch(function, x, y, z, threads, 1, 1, shared, on, parameters, 0)
            if status != 0:
                raise DriverError("cuLaunchKernel", status.name)

        return run

    def tile_map(self, dtype: DType, extents: Sequence[int], steps: Sequence[int], box: Sequence[int], swizzle: int,
                 ) -> Callable[[int], bytes]:  # fmt: skip
        """See `Driver`."""
        call = "cuTensorMapEncodeTiled"
        if self._dead:
            raise DriverError(call, "CUDA_ERROR_CONTEXT_IS_DESTROYED")
        cu, encode, rank = self._cu, _tile_encoder(), len(extents)
        held = ctypes.create_string_buffer(2 * TILE_MAP_BYTES)
        offset = -ctypes.addressof(held) % TILE_MAP_BYTES
        at = ctypes.c_void_p(ctypes.addressof(held) + offset)
        kind = _enum(cu, "CUtensorMapDataType", f"CU_TENSOR_MAP_DATA_TYPE_{TILE_TYPES[dtype.name]}")
        axes = ctypes.c_uint32(rank)
        pattern = f"{swizzle}B" if swizzle else "NONE"
        rest = (
            (ctypes.c_uint64 * rank)(*extents), (ctypes.c_uint64 * (rank - 1))(*steps), (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            _enum(cu, "CUtensorMapInterleave", "CU_TENSOR_MAP_INTERLEAVE_NONE"),
            _enum(cu, "CUtensorMapSwizzle", f"CU_TENSOR_MAP_SWIZZLE_{pattern}"),
            _enum(cu, "CUtensorMapL2promotion", "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"),
            _enum(cu, "CUtensorMapFloatOOBfill", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
        )  # fmt: skip

        def run(address: int) -> bytes:
            status = encode(at, kind, axes, ctypes.c_void_p(address), *rest)
            if status != 0:
                raise DriverError(call, cu.CUresult(status).name)
            return held.raw[offset : offset + TILE_MAP_BYTES]

        return run

    def graph(self) -> Graph:
        """See `Driver`."""
        return NvidiaGraph(self._cu, self._handle)

    # -- time --------------------------------------------------------------------------------------------------------

    def event(self) -> Handle:
        """See `Driver`. PyCUDA records its events on its own streams alone."""
        return self._call("cuEventCreate", 0)

    def record(self, event: Handle, stream: int) -> None:
        """See `Driver`."""
        self._call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: Handle) -> None:
        """See `Driver`."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def elapsed(self, start: Handle, end: Handle) -> float:
        """See `Driver`."""
        return float(self._call("cuEventElapsedTime", start, end)) * 1e-3

    def drop_event(self, event: Handle) -> None:
        """See `Driver`."""
        if not self._dead:
            self._call("cuEventDestroy", event)

    def synchronize(self, stream: int | None = None) -> None:
        """See `Driver`."""
        if stream is None:
            self._call("cuCtxSynchronize")
        else:
            self._call("cuStreamSynchronize", stream)

    # -- the end -----------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """See `Driver`. What PyCUDA frees when it goes is kept from going: its destructors would abort the process."""
        self._dead = True
        _leak(self._live)
        _leak(self._context)

    def close(self) -> None:
        """See `Driver`."""
        if self._dead:
            return
        for pointer in list(self._live):
            self.free(pointer)
        self._dead = True
        context, self._context = self._context, None
        with contextlib.suppress(self._pycuda.Error):
            context.push()
            context.detach()  # takes it off PyCUDA's stack, not off that of the driver
            self._cu.cuCtxPopCurrent()


class NvidiaGraph:
    """See `calls.Graph`. Built node by node: no stream is captured, which other threads could disturb."""

    def __init__(self, cu: Any, context: Handle) -> None:
        self._cu, self._context = cu, context
        self._graph = _result(cu, "cuGraphCreate", 0)
        self._exec: Any = None
        self._last: list[Any] = []
        self._nodes: list[Any] = []  # the parameters of each node, by its number

    def add_launch(self, function: Handle, grid: Grid, threads: int, shared: int, parameters: int) -> Handle:
        """See `Graph`."""
        node = self._cu.CUDA_KERNEL_NODE_PARAMS()
        node.func = function
        node.gridDimX, node.gridDimY, node.gridDimZ = grid
        node.blockDimX, node.blockDimY, node.blockDimZ = threads, 1, 1
        node.sharedMemBytes = shared
        node.kernelParams = parameters
        return self._added(
            _result(self._cu, "cuGraphAddKernelNode", self._graph, self._last, len(self._last), node), node
        )

    def add_fill(self, pointer: int, byte: int, count: int) -> Handle:
        """See `Graph`."""
        node = self._cu.CUDA_MEMSET_NODE_PARAMS()
        node.dst, node.value, node.elementSize = pointer, byte, 1
        node.width, node.height, node.pitch = count, 1, count
        made = _result(self._cu, "cuGraphAddMemsetNode", self._graph, self._last, len(self._last), node, self._context)
        return self._added(made, node)

    def _added(self, made: Any, parameters: Any) -> Handle:
        self._last = [made]
        self._nodes.append((made, parameters))
        return len(self._nodes) - 1

    def instantiate(self) -> None:
        """See `Graph`."""
        self._exec = _result(self._cu, "cuGraphInstantiate", self._graph, 0)

    def set_launch(self, node: Handle, parameters: int) -> None:
        """See `Graph`."""
        made, kept = self._nodes[node]
        kept.kernelParams = parameters
        _result(self._cu, "cuGraphExecKernelNodeSetParams", self._exec, made, kept)

    def set_fill(self, node: Handle, pointer: int) -> None:
        """See `Graph`."""
        made, kept = self._nodes[node]
        kept.dst = pointer
        _result(self._cu, "cuGraphExecMemsetNodeSetParams", self._exec, made, kept, self._context)

    def launcher(self, stream: int) -> Callable[[], None]:
        """See `Graph`."""
        launch, ready, on = self._cu.cuGraphLaunch, self._exec, self._cu.CUstream(stream)

        def run() -> None:
            (status,) = launch(ready, on)
            if status != 0:
                raise DriverError("cuGraphLaunch", status.name)

        return run

    def close(self) -> None:
        """See `Graph`."""
        if self._exec is not None:
            self._cu.cuGraphExecDestroy(self._exec)
        if self._graph is not None:
            self._cu.cuGraphDestroy(self._graph)
        self._exec = self._graph = None


@cache
def _tile_encoder() -> Any:
    """The driver's own function; what it is passed are objects of ctypes, so that it needs no types of arguments."""
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled


def _enum(cu: Any, kind: str, name: str) -> ctypes.c_int:
    return ctypes.c_int(int(getattr(getattr(cu, kind), name)))


def address(array: Array) -> int:
    """Where an array's elements are."""
    return int(array.__array_interface__["data"][0])


def _leak(thing: object) -> None:
    """Keep an object for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
