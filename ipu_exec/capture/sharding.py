"""Tensor sharding: the model as run by one of the IPUs that share its tensors.

The plan's styles (`ipu_exec.base.sharding_plan`) are applied as PyTorch applies them, on weights
of the device "meta" and in PyTorch's fake process group, of which this process is rank 0. The
recorder sees the operators on this rank's shares and the collectives, never DTensors. Afterwards
the modules have their own weights, hooks and forwards again.

A sharded weight is a plain tensor, this rank's share, which becomes a DTensor while its module
runs, so that its gradient belongs to that module's backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ipu_exec.base.sharding_plan import TensorSharding, styles_of_modules
from ipu_exec.capture.layers.equal_layers import enclosing
from ipu_exec.errors import Error
from ipu_exec.lowering.build import row_major_strides

_WHERE = "Options.tensorSharding"


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's part of a weight, and its placements as a DTensor."""

    shape: torch.Size
    whole: torch.Size
    placements: Any


@dataclass(frozen=True, slots=True)
class Shares:
    """A sharded model. ``shapes``: the shapes of sharded weights, by the real weight's identity."""

    shapes: Mapping[int, torch.Size]
    styles: Mapping[str, tuple[Any, ...]]  # by module


NOT_SHARDED = Shares({}, {})


@contextlib.contextmanager
def sharded(model: torch.nn.Module, sharding: TensorSharding | None) -> Iterator[Shares]:
    """Inside, the model's modules run as the plan specifies."""
    if sharding is None or sharding.shards == 1:
        yield NOT_SHARDED
        return
    styles = styles_of_modules(sharding, model)
    modules = dict(model.named_modules())
    before = [(module, _state(module)) for module in modules.values()]
    try:
        with _ranks(sharding.shards) as mesh:
            with torch.no_grad():
                _meta_weights(modules.values())
                for name, mine in styles.items():
                    for style in mine:
                        _apply(name, modules[name], style, mesh, sharding)
                shapes = _with_shares(modules, dict(before), mesh, sharding)
            yield Shares(shapes, styles)
    finally:
        for module, state in before:
            _put_back(module, state)


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """A module's attributes, with copies of the dicts that torch keeps in it."""
    return {
        name: value.copy() if isinstance(value, dict) else value
        for name, value in vars(module).items()
    }


def _put_back(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    own = module.__dict__
    for name in own.keys() - state.keys():
        del own[name]
    for name, value in state.items():
        if isinstance(value, dict) and isinstance(own.get(name), dict):
            own[name].clear()
            own[name].update(value)
        else:
            own[name] = value


@contextlib.contextmanager
def _ranks(count: int) -> Iterator[Any]:
    """A mesh of that many ranks, of which only this process runs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise Error(
            f"{_WHERE}: the script has a process group of torch.distributed, and the shards need"
            " one of their own while the model is compiled. Compile before init_process_group, or"
            " without instances (ipu-run --instances, poprun)"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


def _meta_weights(modules: Any) -> None:
    """Weights of the true shapes on "meta"; modules that share a weight share one there."""
    metas: dict[int, torch.nn.Parameter] = {}
    for module in modules:
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in metas:
                kind = {"dtype": parameter.dtype, "device": "meta"}
                empty = torch.empty_strided(parameter.shape, parameter.stride(), **kind)
                metas[id(parameter)] = torch.nn.Parameter(empty, parameter.requires_grad)
            module._parameters[name] = metas[id(parameter)]


def _apply(
    name: str, module: torch.nn.Module, style: Any, mesh: Any, sharding: TensorSharding
) -> None:
    """Apply one style to one module, as ``parallelize_module`` does."""
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    style = _style(style) if isinstance(style, str) else style
    if style is None:
        return
    if isinstance(style, RowwiseParallel) and isinstance(module, torch.nn.Embedding):
        _rows_of_embedding(name, module, style, mesh, sharding)
        return
    try:
        parallelize_module(module, mesh, style, src_data_rank=None)
    except Exception as error:
        raise Error(
            f"{sharding}: PyTorch refuses {type(style).__name__} for {name or 'the model'!r}, a"
            f" {type(module).__name__}: {error}. Give the plan another style for it"
        ) from error


def _style(word: str) -> Any:
    """PyTorch's style for a Hugging Face name; None: the module is not changed."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    whole = Replicate()
    styles: dict[str, Callable[[], Any]] = {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        "colwise_rep": lambda: ColwiseParallel(output_layouts=whole),
        "colwise_gather_output": lambda: ColwiseParallel(output_layouts=whole),
        "rowwise_rep": lambda: RowwiseParallel(input_layouts=whole),
        "embedding_rowwise": lambda: RowwiseParallel(input_layouts=whole),
        "sequence_parallel": SequenceParallel,
        "replicate": lambda: None,
    }
    return styles[word]()


def _rows_of_embedding(
    name: str, module: torch.nn.Embedding, style: Any, mesh: Any, sharding: TensorSharding
) -> None:
    """Each rank holds some rows of the table and looks up those indices; the result is the sum.

    DTensor's rule for ``embedding_dense_backward`` computes the gradient of the whole table on
    every rank and takes its share; an IPU adds to its own rows.
    """
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    if module.num_embeddings % sharding.shards:
        raise _not_divided(f"{name}.weight", 0, module.num_embeddings, sharding)
    whole = module._parameters["weight"]
    assert whole is not None
    cut = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    module._parameters["weight"] = torch.nn.Parameter(cut, whole.requires_grad)
    rows, layouts = module.num_embeddings // sharding.shards, style.output_layouts

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        outside = tokens >= rows
        weight = module.weight
        looked_up = torch.nn.functional.embedding(tokens.masked_fill(outside, 0), weight)
        own_rows = looked_up.masked_fill(outside.unsqueeze(-1), 0)
        summed = DTensor.from_local(own_rows, mesh, [Partial()], run_check=False)
        result = summed.redistribute(placements=layouts)
        return result.to_local() if style.use_local_output else result

    module.__dict__["forward"] = _Rows(forward)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The forward of an embedding with sharded rows; it uses the weight as it is."""

    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


def _with_shares(
    modules: Mapping[str, torch.nn.Module],
    before: Mapping[torch.nn.Module, Mapping[str, Any]],
    mesh: Any,
    sharding: TensorSharding,
) -> dict[int, torch.Size]:
    """Restore the modules' own weights, whose shares their forwards use; returns the shapes."""
    from torch.distributed.tensor import DTensor

    shapes: dict[int, torch.Size] = {}
    placed: dict[int, tuple[str, Any]] = {}
    for path, module in modules.items():
        shares: dict[str, Share] = {}
        for name, real in before[module]["_parameters"].items():
            cut: Any = module._parameters.get(name)
            full = f"{path}.{name}" if path else name
            if isinstance(cut, DTensor):
                shares[name] = _share(full, cut, sharding)
                if shares[name].shape != shares[name].whole:
                    shapes[id(real)] = shares[name].shape
            if cut is not None:
                placements = getattr(cut, "placements", None)
                _check_tied(full, placements, placed.setdefault(id(real), (full, placements)))
            module._parameters[name] = real
        if shares and not isinstance(vars(module).get("forward"), _Rows):
            module.__dict__["forward"] = _WithShares(module, module.forward, shares, mesh)
    return shapes


def _share(name: str, cut: Any, sharding: TensorSharding) -> Share:
    for placement in cut.placements:
        dim = getattr(placement, "dim", None)
        if dim is not None and cut.shape[dim] % sharding.shards:
            raise _not_divided(name, dim, cut.shape[dim], sharding)
    return Share(cut.to_local().shape, cut.shape, cut.placements)


def _not_divided(name: str, dim: int, size: int, sharding: TensorSharding) -> Error:
    more = -(-size // sharding.shards) * sharding.shards
    return Error(
        f"{sharding}: {sharding.shards} IPUs cannot share {name!r}: its dimension {dim} has {size},"
        f" which {sharding.shards} does not divide. Make it {more} (a vocabulary may be padded), or"
        " take fewer shards"
    )


def _check_tied(name: str, placements: Any, first: tuple[str, Any]) -> None:
    """Check that a weight that modules share is split the same way in all of them."""
    other, others = first
    if placements != others:
        raise Error(
            f"{_WHERE}: {name!r} and {other!r} are one weight, and the plan cuts it in two ways"
            f" ({placements or 'whole'} and {others or 'whole'}). Give both modules styles that cut"
            " the same dimension (rows of an embedding are the outputs of a head: RowwiseParallel"
            " for the one, ColwiseParallel for the other)"
        )


@dataclass(slots=True)
class _WithShares:
    """A module's forward with its shares as DTensors."""

    module: torch.nn.Module
    forward: Callable[..., Any]
    shares: Mapping[str, Share]
    mesh: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch.distributed.tensor import DTensor

        own, parameters = self.module.__dict__, self.module._parameters
        for name, share in self.shares.items():
            local = parameters[name]
            assert local is not None
            own[name] = DTensor.from_local(
                local,
                self.mesh,
                share.placements,
                run_check=False,
                shape=share.whole,
                stride=row_major_strides(share.whole),
            )
        try:
            return self.forward(*args, **kwargs)
        finally:
            for name in self.shares:
                own.pop(name, None)


def losses_of_shares(sharding: TensorSharding | None) -> contextlib.AbstractContextManager[Any]:
    """Inside, cross entropy accepts scores with sharded classes: PyTorch's ``loss_parallel``.

    A forward and its backward need it; a model that enters it leaves it before the backward.
    """
    if sharding is None or sharding.shards == 1:
        return contextlib.nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel()


@contextlib.contextmanager
def without_propagation(paused: Callable[[], Any]) -> Iterator[None]:
    """Inside, ``paused`` is entered while DTensor infers whole shapes by operators no IPU runs."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    own = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(*args: Any, **kwargs: Any) -> Any:
        with paused():
            return own(*args, **kwargs)

    setattr(ShardingPropagator, own.__name__, unseen)
    try:
        yield
    finally:
        setattr(ShardingPropagator, own.__name__, own)


def cut_alike(paths: Sequence[str], shares: Shares) -> bool:
    """Whether all these layers have the same styles, and only for modules inside them.

    A style for a layer itself changes its inputs and outputs around its ``forward``.
    """
    if any(path in shares.styles for path in paths):
        return False
    of_layers: dict[str, dict[str, Any]] = {path: {} for path in paths}
    for name, styles in shares.styles.items():
        if path := enclosing(name, of_layers):
            of_layers[path][name.removeprefix(path)] = styles
    return all(styles == of_layers[paths[0]] for styles in of_layers.values())


def refused(module: str, sharding: TensorSharding, error: Exception) -> Error:
    """The error for a model that cannot run on shares of its tensors."""
    return Error(
        f"{sharding}: on shares of its tensors the model does not run, in module"
        f" {module or 'of the model itself'!r}: {error}. Where it computes with a size it was told"
        " (heads, a hidden size), take it from the tensor, as view(batch, length, -1, head_size)"
        " does, so that an IPU has heads / shards of them; and give a module whose operands the"
        " plan cuts differently PrepareModuleInput or another style",
        location=source_of(error),
    )


def source_of(error: Exception) -> str:
    """The innermost line of the user's own code that an error passed through."""
    from ipu_exec.capture.recording.origins import is_own_code

    line, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_own_code(file):
            line = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line
