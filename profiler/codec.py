"""How an integer array becomes a small blob: differences, bytes of equal weight together, zstd.

Neighbouring tiles hold neighbouring values and time stamps grow, so differences are small; with
their high bytes side by side (all zero) zstd does the rest. The narrowest of 1, 2, 4 or 8 bytes
that holds the values is kept beside the blob as ``dtype`` ("<i1" ... "<i8"), the number of elements
as ``length``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import zstandard

DTYPES = ("<i1", "<i2", "<i4", "<i8")
_LIMITS = tuple((dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in DTYPES)
MAX_LENGTH = 1 << 24  # elements of one vector: 128 MiB at the most
LEVEL = 3


@dataclass(frozen=True, slots=True)
class Coded:
    """An array as the ``vectors`` table stores it."""

    dtype: str
    length: int
    data: bytes


def narrow(values: np.ndarray) -> np.ndarray:
    """The same integers in the narrowest little-endian signed type.

    ValueError for anything but integers in a row.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(
            f"a vector must be integers in one dimension, not {array.dtype} of shape {array.shape}"
        )
    if len(array) > MAX_LENGTH:
        raise ValueError(f"a vector may have {MAX_LENGTH} elements, not {len(array)}")
    low, high = (int(array.min()), int(array.max())) if len(array) else (0, 0)
    for dtype, least, most in _LIMITS:
        if least <= low and high <= most:
            return np.ascontiguousarray(array, dtype=dtype)
    raise ValueError(f"{high} does not fit into 64 bits")


def encode(values: np.ndarray) -> Coded:
    """Encode a one-dimensional array of at most MAX_LENGTH integers; ValueError for any other."""
    return encode_narrow(narrow(values))


def encode_narrow(array: np.ndarray) -> Coded:
    """`encode` for what `narrow` made."""
    size = array.dtype.itemsize
    # Unsigned arithmetic wraps, so that differences need no wider type and always sum back.
    unsigned = array.view(f"<u{size}")
    differences = unsigned.copy()
    differences[1:] -= unsigned[:-1]
    shuffled = differences.view(np.uint8).reshape(-1, size).T.tobytes()
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)
    return Coded(f"<i{size}", len(array), compressor.compress(shuffled))


def decode(dtype: str, length: int, data: bytes, max_length: int = MAX_LENGTH) -> np.ndarray:
    """The int64 array behind a blob. ValueError says what is wrong with it.

    Nothing is allocated before type, length and the size that the frame itself declares agree and
    are within bounds: a bomb costs no more than its own bytes.
    """
    if dtype not in DTYPES:
        raise ValueError(f"unknown element type {dtype!r}")
    if not isinstance(length, int) or not 0 <= length <= max_length:
        raise ValueError(f"a length of {length!r} where at most {max_length} can be")
    if type(data) is not bytes:
        raise ValueError(f"a {type(data).__name__} where a blob belongs")
    size = int(dtype[-1])
    expected = length * size
    try:
        declared = zstandard.frame_content_size(data)
        if declared != expected:
            raise ValueError(f"a blob of {declared} bytes where {length} elements take {expected}")
        if expected == 0:
            return np.zeros(0, dtype=np.int64)
        # python-zstandard refuses a frame that unpacks to more than it declares.
        raw = zstandard.ZstdDecompressor().decompress(
            data, max_output_size=expected, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise ValueError(f"a damaged blob ({error})") from error
    if len(raw) != expected:
        raise ValueError(f"a blob of {len(raw)} bytes where {length} elements take {expected}")
    differences = np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(size, length).T).view(
        f"<u{size}"
    )
    values = np.cumsum(differences.ravel(), dtype=f"<u{size}").view(dtype)
    return values.astype(np.int64)
