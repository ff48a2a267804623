"""Operators are described only beside their lowering (ipu_exec.lowering.operator_info)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from ipu_exec.lowering import (
    OperatorInfo,
    describe,
    info,
    lowering,
    operator_info,
    registered,
    registry,
)
from ipu_exec.lowering.operator_info import Promotion
from tests.paths import ROOT

# Where operators are named: their lowerings, and what capture takes apart.
HOMES = ("ipu_exec/lowering/", "ipu_exec/capture/rewrites/decompositions.py")
SOURCES = [
    path
    for path in sorted((ROOT / "ipu_exec").rglob("*.py"))
    if not path.relative_to(ROOT).as_posix().startswith(HOMES)
]
# Names that are a file's own concern: operators that a pattern rewrites, Python's methods.
OTHERS = {
    "ipu_exec/capture/rewrites/patterns.py": {
        "aten.embedding_dense_backward",
        "aten.add.Tensor",
        "aten.add_.Tensor",
    },
    "ipu_exec/capture/shared_sizes.py": {"view", "reshape", "unflatten"},  # methods that users call
    "ipu_exec/lightning/step.py": {"eq", "ne", "lt", "le", "gt", "ge"},  # methods of a tensor
}
NAMES = {name.split(".")[1] for name in (*registered(), *operator_info._INFOS) if "aten." in name}


def strings(node: ast.AST) -> list[str]:
    """List the words of all strings in a node, including the literal parts of f-strings."""
    names = [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return [word for text in names for word in text.split()]


def members(node: ast.AST) -> list[str]:
    """List the strings in a collection, or the words of a string that is split."""
    if isinstance(node, ast.Dict):
        items: list[ast.expr | None] = list(node.keys)
    elif isinstance(node, (ast.Set, ast.List, ast.Tuple)):
        items = list(node.elts)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("words", "split")):
        return strings(node)
    else:
        return []
    return [i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)]


def tables(source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, names) for whatever looks like a table of ATen names."""
    for node in ast.walk(ast.parse(source)):
        simple = isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return, ast.Call))
        full = [text for text in strings(node) if text.startswith("aten.")] if simple else []
        is_comprehension = isinstance(
            node, (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
        )
        if is_comprehension and any(text.startswith("aten.") for text in strings(node)):
            full = strings(node) * 3
        short = [text for text in members(node) if text in NAMES]
        if len(full) >= 3:
            yield node.lineno, full  # type: ignore[attr-defined]
        elif len(short) >= 3 and 2 * len(short) > len(members(node)):
            yield node.lineno, short  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_table_of_operator_names_stands_outside_lowering(path: Path) -> None:
    allowed = OTHERS.get(path.relative_to(ROOT).as_posix(), set())
    outside = [(line, names) for line, names in tables(path.read_text()) if set(names) - allowed]
    assert not outside, (
        f"{path.relative_to(ROOT)} has a table of ATen names: make it a field of OperatorInfo,"
        " described beside the operators' lowerings"
    )


@pytest.mark.parametrize(
    "source",
    [
        "_NORMS = ('aten.a', 'aten.b', 'aten.c')",
        "_NORMS = {'aten.a': 1, 'aten.b': 2, 'aten.c': (3, 'x')}",
        "def f(op):\n    return op.aten.startswith(('aten.a', 'aten.b', 'aten.c'))",
        "_CASTS = {f'aten.{name}' for name in words('a b')}",
        "_IN_PLACE = frozenset({'add', 'mul', 'relu'})",
        "_IN_PLACE = words('add mul relu')",
    ],
)
def test_a_table_is_seen(source: str) -> None:
    assert list(tables(source))


def test_a_table_of_other_words_is_none() -> None:
    assert not list(tables("_ROLES = ('weight', 'buffer', 'sum')\nx = ['aten.add', 'aten.mul']"))


@pytest.fixture
def own_facts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(operator_info, "_INFOS", dict(operator_info._INFOS))
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))
    yield
    info.cache_clear()


@pytest.mark.usefixtures("own_facts")
def test_facts_of_an_operator_add_up_and_hold_for_its_overloads() -> None:
    describe("mylib.scale", in_place=True)
    lowering("mylib.scale", elementwise=True)(lambda spec, machine: None)  # type: ignore[arg-type, return-value]
    describe("mylib.scale.out", unread=(1,))
    assert info("mylib.scale.default") == OperatorInfo(elementwise=True, in_place=True)
    assert info("mylib.scale.out").unread_operands(()) == (1,)
    assert info("mylib.scale.out").in_place
    assert info("mylib.other.default") == OperatorInfo()
    with pytest.raises(TypeError, match="no_such_fact"):
        describe("mylib.scale", no_such_fact=True)
    (own,) = (code for name, code in registry.by_users() if name == "mylib.scale")
    describe("mylib.scale", elementwise=False)
    (other,) = (code for name, code in registry.by_users() if name == "mylib.scale")
    assert own != other  # a cached executable was compiled with other facts


def test_every_fact_is_one_of_some_operator() -> None:
    for field in fields(OperatorInfo):
        assert any(
            getattr(one, field.name) != field.default for one in operator_info._INFOS.values()
        ), field.name


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("aten.avg_pool3d_backward.default", (1,)),
        ("aten.max_pool3d_with_indices_backward.default", (1,)),
        ("aten.reflection_pad1d_backward.default", (1,)),
        ("aten.zeros_like.default", (0,)),
        ("aten.mul.Tensor", ()),
    ],
)
def test_operands_of_which_only_the_shape_is_read(name: str, unread: tuple[int, ...]) -> None:
    assert info(name).unread_operands(()) == unread


def test_a_convolution_reads_what_the_gradients_that_are_wanted_need() -> None:
    one, both = ("x", (True, False, True)), ("x", (True, True, False))
    assert info("aten.convolution_backward.default").unread_operands(one) == (1,)
    assert info("aten.convolution_backward.default").unread_operands(both) == ()
    assert info("poplin.multi_conv_backward").unread_operands((both, one)) == (4,)


def test_facts_that_passes_tell_apart() -> None:
    assert info("aten.native_layer_norm.default").norm
    assert not info("aten.native_layer_norm_backward.default").norm
    assert info("aten.layer_norm").promotion is Promotion.PARAMETERS
    assert info("aten.matmul").promotion is Promotion.OPERANDS
    assert info("aten.linear").promotion is Promotion.INPUT
    assert info("aten.add.Tensor").in_place and not info("aten.div.Tensor").in_place
    assert info("aten.div.Tensor").fused_in_update and not info("aten.relu.default").fused_in_update
