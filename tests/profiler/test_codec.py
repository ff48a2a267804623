"""The coding of integer arrays.

Nothing is lost, small arrays stay small, and a hostile blob costs nothing.
"""

from __future__ import annotations

import tracemalloc
from functools import cache

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ipuscope.profiler.file import codec

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.one_of(INT64, st.integers(-300, 300)), max_size=200))
def test_any_integers_come_back_as_they_were(values):
    array = np.array(values, dtype=np.int64)
    coded = codec.encode(array)
    decoded = codec.decode(coded.dtype, coded.length, coded.data)
    assert decoded.dtype == np.int64
    np.testing.assert_array_equal(decoded, array)


@given(st.lists(st.lists(st.one_of(INT64, st.integers(-300, 300)), max_size=9), max_size=20))
def test_many_come_back_as_one_by_one(many):
    coded = [codec.encode(np.array(values, dtype=np.int64)) for values in many]
    arrays = codec.decode_all([(one.dtype, one.length, one.data) for one in coded])
    assert [array.tolist() for array in arrays] == many
    assert all(array.dtype == np.int64 for array in arrays)


@given(
    st.integers(0, 7).flatmap(
        lambda length: st.lists(
            st.lists(st.one_of(INT64, st.integers(-300, 300)), min_size=length, max_size=length),
            min_size=1,
            max_size=20,
        )
    )
)
def test_many_of_one_length_come_back_as_rows(rows):
    coded = [codec.encode(np.array(values, dtype=np.int64)) for values in rows]
    table = np.full((len(rows), len(rows[0])), 7)
    codec.decode_into(table, [(one.dtype, one.data) for one in coded])
    assert table.tolist() == rows


@pytest.mark.parametrize(
    "wrong",
    [("<f8", 3, b""), ("<i1", 4, None), ("<i1", 3, b"junk"), ("<i1", "3", None), (None,) * 3],
)
def test_one_wrong_vector_among_many_is_found(wrong):
    right = codec.encode(np.array([1, 2, 3]))
    dtype, length, data = wrong
    coded = [(right.dtype, right.length, right.data), (dtype, length, data or right.data)]
    with pytest.raises(ValueError):
        codec.decode_all(coded)
    if length == 3:
        with pytest.raises(ValueError):
            codec.decode_into(np.zeros((2, 3), dtype=np.int64), [(one[0], one[2]) for one in coded])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", ">i4", "uint32", "uint64"])
def test_any_integer_type_is_taken(dtype):
    array = np.array([1, 0, 1, 1], dtype=dtype)
    coded = codec.encode(array[::2])
    assert codec.decode(coded.dtype, coded.length, coded.data).tolist() == [1, 1]


@pytest.mark.parametrize(
    "bad", [np.ones((2, 2), dtype=int), np.array([0.5]), np.array([2**63], dtype=np.uint64)]
)
def test_what_is_no_row_of_integers_is_refused(bad):
    with pytest.raises(ValueError):
        codec.encode(bad)


def test_values_take_the_narrowest_type():
    assert [codec.encode(np.array([top])).dtype for top in (127, 128, 1 << 15, 1 << 31)] == [
        "<i1",
        "<i2",
        "<i4",
        "<i8",
    ]


def test_time_stamps_and_even_tiles_are_small():
    assert len(codec.encode(np.arange(100_000) * 1_237).data) < 1_000
    assert len(codec.encode(np.full(1_472, 4_096)).data) < 60


@cache
def bomb(declared: int | None) -> bytes:
    """Compress zeros to a few kB, in a frame that declares their size or does not."""
    compressor = zstandard.ZstdCompressor(level=19).compressobj(
        size=-1 if declared is None else declared
    )
    chunk = bytes(1 << 22)
    return b"".join(compressor.compress(chunk) for _ in range(1 << 6)) + compressor.flush()


@pytest.mark.parametrize("declared", [None, 1 << 28])
@pytest.mark.parametrize("length", [8, 1 << 25, 1 << 62, -1, True + 0.5, "8", None])
def test_a_bomb_is_refused_before_it_takes_memory(declared, length):
    data = bomb(declared)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            codec.decode("<i8", length, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("dtype", "length", "data", "problem"),
    [
        ("<f8", 2, b"", "unknown element type"),
        ("|O", 2, b"", "unknown element type"),
        (None, 2, b"", "unknown element type"),
        ("<i4", 2, b"garbage", "damaged"),
        ("<i4", 2, b"", "damaged"),
        ("<i4", 2, None, "blob belongs"),
        ("<i4", 3, codec.encode(np.array([70_000, 1])).data, "8 where|8 bytes where"),
        ("<i4", 2, codec.encode(np.array([70_000, 1])).data[:-3], "damaged"),
        ("<i4", 2, codec.encode(np.array([70_000, 1])).data + b"more", "damaged"),
    ],
)
def test_a_damaged_blob_is_named(dtype, length, data, problem):
    with pytest.raises(ValueError, match=problem):
        codec.decode(dtype, length, data)


def test_a_vector_longer_than_its_place_is_refused():
    coded = codec.encode(np.arange(1_000))
    with pytest.raises(ValueError, match="at most 64"):
        codec.decode(coded.dtype, coded.length, coded.data, max_length=64)
