"""Compiled models as files: content from strangers runs nothing and costs nothing."""

from __future__ import annotations

import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ipu_exec as poptorch
from ipu_exec.errors import Error
from ipu_exec.session.files import executable_file, plain_values

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.poptorch"
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    options = poptorch.Options().showCompilationProgressBar(False)
    wrapped = poptorch.inferenceModel(model, options)
    wrapped.compileAndExport(str(path), torch.ones(2, 4))
    return path


def files(path: Path) -> Files:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def put(path: Path, content: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def changed(path: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy whose program has been changed as JSON."""
    content = files(path)
    program = json.loads(content["program.json"])
    change(program)
    return put(target, content | {"program.json": json.dumps(program).encode()})


def test_nothing_in_a_file_is_a_pickle_but_the_model(saved: Path) -> None:
    content = files(saved)
    assert set(content) == {"header.json", "program.json", "arrays.bin", "model.pt"}
    json.loads(content["program.json"])
    assert not any(data.startswith(b"\x80") for data in content.values())


def test_what_comes_back_is_what_was_written(saved: Path) -> None:
    read = executable_file.read(saved)
    apart = plain_values.taken_apart((read.executable, read.inputs, read.state, read.rng_state))
    stored = json.loads(files(saved)["program.json"])
    assert apart.nodes == stored["nodes"] and apart.table() == stored["arrays"]


class _Other:
    pass


@pytest.mark.parametrize("value", [_Other(), nn.Linear, len, object(), np.array([_Other()])])
def test_what_is_no_record_is_not_written(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        plain_values.taken_apart([value])


def test_a_value_that_holds_itself_is_not_written() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(TypeError, match="holds itself"):
        plain_values.taken_apart(ring)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda some: (
        st.lists(some)
        | st.tuples(some, some)
        | st.dictionaries(st.text() | st.integers(), some)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(values)
@settings(max_examples=40, deadline=None)
def test_plain_values_come_back(value: Any) -> None:
    plain = plain_values.taken_apart(value)
    nodes, root = json.loads(json.dumps([plain.nodes, plain.root]))
    back = plain_values.put_together(nodes, plain.arrays, root)
    assert back == value
    assert repr(plain_values.taken_apart(back).nodes) == repr(plain.nodes)  # types too


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "<i8", ">i4", "f4", "f8"])
def test_arrays_come_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    plain = plain_values.taken_apart([array, array.T, array[0, 0], array[:, :0]])
    content = b"".join(one.tobytes() for one in plain.arrays)
    arrays = plain_values.arrays_of(plain.table(), memoryview(content))
    one, turned, scalar, empty = plain_values.put_together(plain.nodes, arrays, plain.root)
    assert np.array_equal(one, array) and np.array_equal(turned, array.T)
    assert scalar == array[0, 0] and isinstance(scalar, np.generic)
    assert empty.shape == (2, 0) and one.flags.writeable


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (["record", "os.system", "touch touched"], "which no compiled model has"),
        (["record", "ipu_exec.session.executor.PoplarExecutor"], "which no compiled model has"),
        (["record", "ipu_exec.graph.Graph"], "fields"),
        (["record", "ipu_exec.graph.ValueRef", "text", "text"], "which no|fields|cannot be"),
        (["enum", "ipu_exec.enums.OutputMode", "__class__"], "which no compiled model has"),
        (["object", 1], "which no compiled model has"),
        (["array", 10**9], "refers to"),
        (["array"], "refers to"),
        ([], "not enough values"),
        (["array", "0"], "refers to"),
        (["tuple", [10**9]], "refers to"),
        (["tuple", [-1]], "refers to"),
        (["size", "x"], "cannot be made"),
        (["dict", "a"], "shorter"),
        (["set", [0]], "is broken"),
        (["range", "a", 1, 1], "not numbers"),
        ("tuple", "where a list belongs"),
    ],
)
def test_a_forged_value_is_an_error(saved: Path, tmp_path: Path, node: Any, says: str) -> None:
    def add(program: dict[str, Any]) -> None:
        program["nodes"].append(node)
        program["root"] = [len(program["nodes"]) - 1]

    with pytest.raises(Error, match=says) as caught:
        executable_file.read(changed(saved, tmp_path / "bad", add))
    assert str(tmp_path / "bad") in str(caught.value)


def test_a_field_of_another_kind_is_an_error(saved: Path, tmp_path: Path) -> None:
    """Such as in a graph without storages, which the executor would fail on later."""

    def change(program: dict[str, Any]) -> None:
        node = next(node for node in program["nodes"] if node[1:2] == ["ipu_exec.graph.Graph"])
        node[2] = "no operators"

    with pytest.raises(Error, match=r"ipu_exec\.graph\.Graph\.\w+ cannot be a str"):
        executable_file.read(changed(saved, tmp_path / "bad", change))


@pytest.mark.parametrize(
    "entry",
    [
        ["<i8", [1 << 40]],
        ["<i8", [-1]],
        ["|O", [1]],
        ["<i8", "12"],
        [["<i8", "O"], [1]],
        ["<U9", [1]],
    ],
)
def test_the_size_of_an_array_is_compared_before_it_is_made(
    saved: Path, tmp_path: Path, entry: list[Any]
) -> None:
    bad = changed(saved, tmp_path / "bad", lambda program: program["arrays"].append(entry))
    tracemalloc.start()
    with pytest.raises(Error, match="broken"):
        executable_file.read(bad)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 64 << 20


def test_a_bomb_is_not_unpacked(saved: Path, tmp_path: Path) -> None:
    content = files(saved) | {
        "program.json": b"[" + b" " * (executable_file.MOST_BYTES["program.json"])
    }
    bad = put(tmp_path / "bad", content)
    tracemalloc.start()
    with pytest.raises(Error, match="may have"):
        executable_file.read(bad)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def _copies() -> list[Any]:
    return [["array", 0] for _ in range(1500)]


def _doubled(levels: int) -> list[Any]:
    """Nested tuples, each of them there twice, in a set: hashing doubles with each level."""
    nested = [["tuple", [at - 1], [at - 1]] for at in range(1, levels)]
    return [["tuple", 1], *nested, ["set", [levels - 1]]]


def _colliding() -> list[Any]:
    """Whole numbers of one hash: a set of them takes the square of their number."""
    return [["set", *(at * ((1 << 61) - 1) for at in range(1 << 17))]]


def _walked_again() -> list[Any]:
    """A list that very many fields hold: each field walks it."""
    kind = "ipuscope.profiler.file.records.Option"
    return [["tuple", *range(4000)], *([["record", kind, [0], [0]]] * 4000)]


@pytest.mark.parametrize("nodes", [_copies(), _doubled(40), _colliding(), _walked_again()])
def test_nodes_cannot_cost_more_than_their_number_lets_expect(nodes: list[Any]) -> None:
    array = np.zeros(1 << 20)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"of its own|too deep|long to hash|too often"):
        plain_values.put_together(nodes, [array], [len(nodes) - 1])
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_small_file_of_very_many_values_is_not_unpacked(saved: Path, tmp_path: Path) -> None:
    nothing = ",".join(["[]"] * 300_000).encode()
    content = files(saved) | {"program.json": b'{"nodes":[' + nothing + b"]}"}
    tracemalloc.start()
    with pytest.raises(Error, match=r"may have|values in"):
        executable_file.read(put(tmp_path / "bad", content))
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_an_older_file_with_a_pickle_is_not_read(saved: Path, tmp_path: Path) -> None:
    content = files(saved)
    header = json.loads(content["header.json"]) | {"version": 1}
    bad = put(
        tmp_path / "bad",
        {"header.json": json.dumps(header).encode(), "executable.pickle": pickle.dumps(1)},
    )
    with pytest.raises(Error, match="version 1; this IPUscope reads 3"):
        executable_file.read(bad)


def test_a_model_is_read_by_load_alone_which_says_that_it_runs_code(
    saved: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    fresh = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    content = files(saved) | {"model.pt": b"whatever this is, it is not read"}
    other = put(tmp_path / "other.poptorch", content)
    wrapped = poptorch.inferenceModel(fresh, poptorch.Options().showCompilationProgressBar(False))
    wrapped.loadExecutable(str(other))
    assert torch.equal(wrapped(torch.ones(2, 4)), fresh(torch.ones(2, 4)))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="Unpickling runs code"):
        poptorch.load(str(saved))


@given(
    at=st.integers(0, 1 << 20),
    by=st.sampled_from(["0", "-1", "null", "[0]", "[1]", '"x"', "1e400", "[]", "{}", "true", "99"]),
)
@settings(max_examples=32, deadline=None)
def test_any_part_of_a_program_may_be_something_else(saved: Path, at: int, by: str) -> None:
    """It is an executable, or an Error that names the file."""
    program = json.loads(files(saved)["program.json"])
    nodes = program["nodes"]
    node = nodes[at % len(nodes)]
    node[at // len(nodes) % len(node)] = json.loads(by)
    bad = changed(saved, saved.with_name("bad"), lambda found: found.update(program))
    said = ""
    try:
        executable_file.read(bad)
    except Error as error:
        said = str(error)
    assert not said or str(bad) in said
