"""Images, through Pillow: u8 `[H, W]` (grey), `[H, W, C]` (colour), u16 and bool `[H, W]` where the format has them."""

from __future__ import annotations

from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from loopfuse.dtypes import BOOL, U8, U16, of_numpy
from loopfuse.formats.common import Array, BadFile, check_size, unheard

EXTENSIONS = frozenset((".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".pbm", ".pnm", ".bmp", ".tif", ".tiff", ".webp",
                        ".gif"))  # fmt: skip
# Of all that Pillow reads; other kinds it gives to programs of the system.
_READ = ("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP", "GIF")
_DIRECT = ("L", "LA", "RGB", "RGBA")
_SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N")
_WRITTEN = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".ppm": "PPM", ".pgm": "PPM", ".pbm": "PPM",
            ".pnm": "PPM", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF", ".webp": "WEBP"}  # fmt: skip


def read_image(file: IO[bytes]) -> Array:
    """The pixels; a palette is looked up, nothing else is converted."""
    try:
        with unheard(), Image.open(file, formats=_READ) as image:
            _check_pixels(image)
            return _pixels(image)
    except BadFile:
        raise
    except MemoryError as why:
        raise BadFile("LF0509", "needs more memory than there is") from why
    except Image.DecompressionBombError as why:
        raise _bomb() from why
    except UnidentifiedImageError as why:
        raise BadFile("LF0511", "is not an image that Pillow knows") from why
    except Exception as why:  # its readers let a broken file raise almost anything
        raise BadFile("LF0511", f"is a broken image: {why}") from why


def _bomb() -> BadFile:
    return BadFile("LF0518", f"has more than {Image.MAX_IMAGE_PIXELS} pixels: it may be a decompression bomb",
                   fix="convert it to .npy first")  # fmt: skip


def _check_pixels(image: Image.Image) -> None:
    """Refuse an image by what its header says, before its pixels are unpacked."""
    count = image.width * image.height
    if Image.MAX_IMAGE_PIXELS is not None and count > Image.MAX_IMAGE_PIXELS:
        raise _bomb()
    check_size(count * max(len(image.getbands()), 2))


def _pixels(image: Image.Image) -> Array:
    frames = getattr(image, "n_frames", 1)
    if frames != 1:
        raise BadFile("LF0513", f"is a sequence of {frames} images, not one")
    if image.mode in ("P", "PA"):
        return _pixels(image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB"))
    if image.mode in _SIXTEEN:
        return np.asarray(image).astype(np.uint16)
    if image.mode == "1":  # NumPy sees its pixels as bools whose bytes are 255
        return np.asarray(np.asarray(image.convert("L")) != 0)
    if image.mode not in _DIRECT:
        raise BadFile("LF0513", f"has pixels of kind {image.mode}, which is not supported", fix="convert it to RGB")
    return np.array(image)


def write_image(file: IO[bytes], array: Array, extension: str) -> None:
    """Write pixels in the format that the extension names."""
    picture = _picture(array)
    kind = _WRITTEN.get(extension)
    if kind is None:
        raise BadFile("LF0513", f"is not written: use one of {' '.join(sorted(_WRITTEN))}")
    options: dict[str, int] = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    try:
        picture.save(file, kind, **options)
    except (OSError, ValueError, KeyError) as why:
        raise BadFile("LF0513", f"cannot hold this array: {why}", fix="write a .png or a .npy") from why


def _picture(array: Array) -> Image.Image:
    dtype, shape = of_numpy(array.dtype), array.shape
    flat = np.ascontiguousarray(array)
    fits = len(shape) == 2 and dtype in (U8, U16, BOOL)
    fits = fits or (len(shape) == 3 and dtype == U8 and shape[2] in (2, 3, 4))
    if not fits:
        extents = ", ".join(map(str, shape))
        raise BadFile(
            "LF0513",
            f"cannot hold {dtype or array.dtype}[{extents}]: an image is u8[H, W], u8[H, W, C], u16[H, W], bool[H, W]",
            fix="u8(round(clip(y, 0, 1) * 255)), or write a .npy",
        )
    if 0 in shape:
        raise BadFile("LF0513", "cannot hold an image without pixels")
    if dtype == U16:
        return Image.fromarray(flat.astype("<u2"))
    return Image.fromarray(flat)
