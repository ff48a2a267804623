"""The coding of an integer array as a small blob: differences, byte planes, zstd.

Neighbouring tiles have similar values and time stamps grow, so differences are small; with their
high bytes side by side (all zero) zstd does the rest. The narrowest of 1, 2, 4 or 8 bytes that fits
the values is stored beside the blob as ``dtype`` ("<i1" ... "<i8"), the number of elements as
``length``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    """Integers in the narrowest little-endian signed type; ValueError unless in one dimension."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(
            f"a vector must be integers in one dimension, not {array.dtype} of shape {array.shape}"
        )
    if len(array) > MAX_LENGTH:
        raise ValueError(f"a vector may have {MAX_LENGTH} elements, not {len(array)}")
    ends = (np.minimum.reduce(array), np.maximum.reduce(array)) if len(array) else (0, 0)
    low, high = map(int, ends)
    for dtype, least, most in _LIMITS:
        if least <= low and high <= most:
            return np.ascontiguousarray(array, dtype=dtype)
    raise ValueError(f"{high} does not fit into 64 bits")


def encode(values: np.ndarray) -> Coded:
    """Encode a one-dimensional array of at most MAX_LENGTH integers; ValueError for any other."""
    return encode_narrow(narrow(values), compressor())


def compressor() -> zstandard.ZstdCompressor:
    """What packs arrays, of one thread at a time: to make it takes longer than to pack one."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)


def encode_narrow(array: np.ndarray, packs: zstandard.ZstdCompressor) -> Coded:
    """`encode` for an array from `narrow`, by a `compressor`."""
    size = array.dtype.itemsize
    # Unsigned arithmetic wraps, so that differences need no wider type and always sum back.
    unsigned = array.view(f"<u{size}")
    differences = unsigned.copy()
    differences[1:] -= unsigned[:-1]
    shuffled = differences.view(np.uint8).reshape(-1, size).T.tobytes()
    return Coded(f"<i{size}", len(array), packs.compress(shuffled))


def decode(dtype: str, length: int, data: bytes, max_length: int = MAX_LENGTH) -> np.ndarray:
    """The int64 array of a blob; ValueError says what is wrong with it.

    Nothing is allocated before type, length and the size that the frame declares agree and are
    within bounds: a bomb costs no more than its own bytes.
    """
    return decode_all([(dtype, length, data)], max_length)[0]


def decode_all(
    coded: Sequence[tuple[Any, Any, Any]], max_length: int = MAX_LENGTH
) -> list[np.ndarray]:
    """`decode` of many (dtype, length, data), several times as fast; the results share memory."""
    decompressor = zstandard.ZstdDecompressor()
    arrays: list[np.ndarray] = [np.zeros(0, dtype=np.int64)] * len(coded)
    for dtype in dict.fromkeys(one[0] for one in coded):
        chosen = [number for number, one in enumerate(coded) if one[0] == dtype]
        raws = [_unpacked(*coded[number], max_length, decompressor) for number in chosen]
        lengths = [coded[number][1] for number in chosen]
        values = _summed(raws, lengths, int(dtype[-1]))
        end = 0
        for number, length in zip(chosen, lengths, strict=True):
            arrays[number] = values[end : end + length]
            end += length
    return arrays


def decode_into(rows: np.ndarray, coded: Sequence[tuple[Any, Any]]) -> None:
    """`decode` (dtype, data) of equal lengths into the ``rows`` of a table, int64[vector, entry].

    ValueError as there; the contents of the rows are then undefined.
    """
    decompressor, length = zstandard.ZstdDecompressor(), rows.shape[1]
    for dtype in dict.fromkeys(one[0] for one in coded):
        chosen = [number for number, one in enumerate(coded) if one[0] == dtype]
        raws = [
            _unpacked(dtype, length, coded[number][1], MAX_LENGTH, decompressor)
            for number in chosen
        ]
        size = int(dtype[-1])
        shuffled = np.frombuffer(b"".join(raws), np.uint8).reshape(len(chosen), size, length)
        sums = np.cumsum(_unshuffled(shuffled), axis=1, dtype=f"<u{size}")
        rows[chosen] = sums.view(f"<i{size}")


def _unpacked(
    dtype: Any, length: Any, data: Any, max_length: int, decompressor: zstandard.ZstdDecompressor
) -> bytes:
    """The bytes in a blob, as many as it should have; ValueError."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown element type {dtype!r}")
    if not isinstance(length, int) or not 0 <= length <= max_length:
        raise ValueError(f"a length of {length!r}, which may be at most {max_length}")
    if type(data) is not bytes:
        raise ValueError(f"a {type(data).__name__} where a blob belongs")
    expected = length * int(dtype[-1])
    try:
        declared = zstandard.frame_content_size(data)
        if declared != expected:
            raise ValueError(f"a blob of {declared} bytes where {length} elements take {expected}")
        if expected == 0:
            return b""
        # python-zstandard refuses a frame that unpacks to more than it declares.
        raw: bytes = decompressor.decompress(data, max_output_size=expected, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a damaged blob ({error})") from error
    if len(raw) != expected:
        raise ValueError(f"a blob of {len(raw)} bytes where {length} elements take {expected}")
    return raw


def _summed(raws: Sequence[bytes], lengths: Sequence[int], size: int) -> np.ndarray:
    """The values of arrays, one after the other, int64, from the bytes of their differences."""
    if size == 1:
        shuffled = np.frombuffer(b"".join(raws), np.uint8)
    else:
        parts = [
            np.frombuffer(raw, np.uint8).reshape(size, length)
            for raw, length in zip(raws, lengths, strict=True)
        ]
        shuffled = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    # one sum over all, less the sum before each array's beginning; unsigned sums wrap
    sums = np.cumsum(_unshuffled(shuffled.reshape(size, -1)), dtype=f"<u{size}")
    if len(raws) > 1:
        begins = np.cumsum(lengths) - lengths
        behind = np.append(np.zeros(1, dtype=sums.dtype), sums)
        sums -= np.repeat(behind[begins], lengths)
    return sums.view(f"<i{size}").astype(np.int64)


def _unshuffled(planes: np.ndarray) -> np.ndarray:
    """The unsigned numbers of byte planes, uint8[..., byte, element]."""
    *rows, size, length = planes.shape
    numbers = np.empty((*rows, length, size), np.uint8)
    for byte in range(size):  # several times as fast as a copy of the transposed planes
        numbers[..., byte] = planes[..., byte, :]
    return numbers.view(f"<u{size}")[..., 0]
