"""The few kernels of the runtime's own: a copy of strided arrays, a pause for timing, and what measures a device."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np

from loopfuse.cuda.calls import Driver, Handle
from loopfuse.cuda.compile import compile_kernel
from loopfuse.cuda.context import Device

MOST_AXES = 8

_AXES = "\n".join(
    f"  if (n{k} > 1) {{ from += (rest % n{k}) * s{k}; rest /= n{k}; }}" for k in reversed(range(MOST_AXES))
)
_EXTENTS = ", ".join(f"long long n{k}" for k in range(MOST_AXES))
_STRIDES = ", ".join(f"long long s{k}" for k in range(MOST_AXES))
TEXTS = {
    # Elements of `size` bytes from where strides (in bytes) say into one after the other.
    "lf_gather": f"""extern "C" __global__ void lf_gather(char* to, const char* from, long long count, long long size,
    {_EXTENTS}, {_STRIDES}) {{
  long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  long long rest = at;
{_AXES}
  to += at * size;
  if (size == 1) *to = *from;
  else if (size == 2) *(short*)to = *(const short*)from;
  else if (size == 4) *(int*)to = *(const int*)from;
  else *(long long*)to = *(const long long*)from;
}}
""",
    "lf_spin": """extern "C" __global__ void lf_spin(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {}
}
""",
    "lf_copy": """extern "C" __global__ void lf_copy(uint4* to, const uint4* from, long long count) {
  long long at = (long long)blockIdx.x * 1024 + threadIdx.x;
  uint4 v[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (at + k * 256 < count)
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w) : "l"(from + at + k * 256));
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (at + k * 256 < count)
      asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
          :: "l"(to + at + k * 256), "r"(v[k].x), "r"(v[k].y), "r"(v[k].z), "r"(v[k].w) : "memory");
}
""",
    # Reads the same memory again and again: what the second-level cache gives.
    "lf_reread": """extern "C" __global__ void lf_reread(unsigned int* to, const uint4* from, long long count, long long times) {
  unsigned int sum = 0;
  for (long long t = 0; t < times; ++t)
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < count;
         at += (long long)gridDim.x * blockDim.x) {
      uint4 v;
      asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from + at));
      sum += v.x ^ v.y ^ v.z ^ v.w;
    }
  if (sum == 0x12345678u) *to = sum;
}
""",
    "lf_fma": """extern "C" __global__ void lf_fma(float* to, float a, float b, long long times) {
  float x[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) x[k] = threadIdx.x + k;
  for (long long t = 0; t < times; ++t)
#pragma unroll
    for (int u = 0; u < 8; ++u)
#pragma unroll
      for (int k = 0; k < 8; ++k) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[k]) : "f"(a), "f"(b));
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += x[k];
  if (sum == 12345.0f) *to = sum;
}
""",
    "lf_fma64": """extern "C" __global__ void lf_fma64(double* to, double a, double b, long long times) {
  double x[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) x[k] = threadIdx.x + k;
  for (long long t = 0; t < times; ++t)
#pragma unroll
    for (int u = 0; u < 8; ++u)
#pragma unroll
      for (int k = 0; k < 8; ++k) asm volatile("fma.rn.f64 %0, %0, %1, %2;" : "+d"(x[k]) : "d"(a), "d"(b));
  double sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += x[k];
  if (sum == 12345.0) *to = sum;
}
""",
    "lf_special": """extern "C" __global__ void lf_special(float* to, long long times) {
  float x[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) x[k] = threadIdx.x * 0.001f + k;
  for (long long t = 0; t < times; ++t)
#pragma unroll
    for (int u = 0; u < 8; ++u)
#pragma unroll
      for (int k = 0; k < 8; ++k) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[k]));
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += x[k];
  if (sum == 12345.0f) *to = sum;
}
""",
    "lf_integer": """extern "C" __global__ void lf_integer(int* to, int a, long long times) {
  int x[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) x[k] = threadIdx.x + k;
  for (long long t = 0; t < times; ++t)
#pragma unroll
    for (int u = 0; u < 8; ++u)
#pragma unroll
      for (int k = 0; k < 8; ++k) asm volatile("add.s32 %0, %0, %1;" : "+r"(x[k]) : "r"(a));
  int sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += x[k];
  if (sum == 12345) *to = sum;
}
""",
    # A chain of elements, each the place of the next, too far apart for a cache to help; and a walk along it.
    "lf_chain": """extern "C" __global__ void lf_chain(unsigned int* to, long long count, long long step) {
  long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) to[at] = (unsigned int)((at + step) % count);
}
""",
    "lf_walk": """extern "C" __global__ void lf_walk(unsigned int* to, const unsigned int* from, long long times) {
  unsigned int at = *to;
  for (long long t = 0; t < times; ++t) at = __ldcv(from + at);
  *to = at;
}
""",
    "lf_nothing": 'extern "C" __global__ void lf_nothing() {}\n',
}

_LOCK = threading.Lock()


def kernel(device: Device, name: str) -> Handle:
    """A kernel of `TEXTS`, compiled and loaded at first use. Call it inside `device.active`.

    Raises `MachineError` where there is no compiler.
    """
    with _LOCK:
        found = device.helpers.get(name)
        if found is None:
            binary = compile_kernel(TEXTS[name], name, device.arch, contract=True)
            module = device.driver.load(binary.cubin)
            found = device.helpers[name] = device.driver.function(module, name, 0, 1)
        return found


def launch(driver: Driver, function: Handle, blocks: int, threads: int, stream: int, *arguments: int | float) -> None:
    """Launch a kernel whose arguments are 64-bit integers and `float`s."""
    values = np.zeros(max(1, len(arguments)), np.uint64)
    for k, value in enumerate(arguments):
        if isinstance(value, float):
            values[k : k + 1].view(np.float32)[0] = value
        else:
            values[k] = value & 0xFFFF_FFFF_FFFF_FFFF
    pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.uint64)
    driver.launcher(function, (blocks, 1, 1), threads, 0, stream, int(pointers.ctypes.data))()


def gather(device: Device, to: int, start: int, shape: Sequence[int], strides: Sequence[int], size: int,
           stream: int) -> None:  # fmt: skip
    """Copy a strided array, `strides` in bytes, so that it becomes contiguous. Raises `ValueError` for too many axes."""
    extents, steps = merged(shape, strides)
    if len(extents) > MOST_AXES:
        raise ValueError(f"an array with {len(extents)} axes that do not follow each other cannot be copied")
    fill = MOST_AXES - len(extents)
    count = math.prod(shape)
    if count:
        launch(device.driver, kernel(device, "lf_gather"), -(-count // 256), 256, stream, to, start, count, size,
               *([1] * fill + extents), *([0] * fill + steps))  # fmt: skip


def merged(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """The same array with as few axes as possible."""
    extents: list[int] = []
    steps: list[int] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if extents and steps[-1] == extent * stride:
            extents[-1] *= extent
            steps[-1] = stride
        else:
            extents.append(extent)
            steps.append(stride)
    return extents, steps
