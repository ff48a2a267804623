"""Names with numbers, compared with ones written by hand."""

from __future__ import annotations

from ipuscope.profiler.unique_names import popart_names, unique


def test_repeated_names_get_numbers_that_nothing_else_has():
    assert unique(["a", "b", "a", "a"]) == ["a", "b", "a/1", "a/2"]
    assert unique(["a", "a", "a/1"]) == ["a", "a/2", "a/1"]
    assert unique([]) == []


def test_operators_keep_their_path_and_take_poparts_word():
    names = ["layer.0/bmm", "layer.0/mm", "relu", "layer.0/bmm_1"]
    kinds = ["MatMul", "MatMul", "Relu", "MatMul"]
    assert popart_names(names, kinds) == [
        "layer.0/MatMul",
        "layer.0/MatMul/1",
        "Relu",
        "layer.0/MatMul/2",
    ]
