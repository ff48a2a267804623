"""Plans of tensor sharding, in PyTorch's and Hugging Face's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from ipu_exec.errors import UsageError
from ipuscope.profiler.timeline.links import MAX_IPUS

AUTO = "auto"
# Hugging Face's, of `tp_plan`; None: the module stays as it is
_STYLES = (
    *("colwise", "rowwise", "colwise_rep", "rowwise_rep", "colwise_gather_output"),
    *("embedding_rowwise", "sequence_parallel", "replicate"),
)


@dataclass(frozen=True, slots=True)
class TensorSharding:
    """How many IPUs the tensors of a stage are sharded over, and how.

    ``plan``: names of modules, with wildcards, each with a style of
    ``torch.distributed.tensor.parallel`` or a Hugging Face word; "auto" for a model that has one.
    """

    shards: int = 1
    plan: Mapping[str, Any] | str = AUTO

    def to_json(self) -> dict[str, Any]:
        """For the profile's options: the number, and the plan in words."""
        plan = self.plan
        if not isinstance(plan, str):
            plan = {name: _words(style) for name, style in plan.items()}
        return {"shards": self.shards, "plan": plan}

    def __str__(self) -> str:
        return f"tensorSharding({self.shards}, ...)"


def checked(shards: Any, plan: Any) -> TensorSharding:
    """The sharding that an option requests; Error if it is invalid."""
    where = "Options.tensorSharding"
    power = isinstance(shards, int) and not isinstance(shards, bool) and shards > 0
    if not power or shards & (shards - 1) or shards > MAX_IPUS:
        raise UsageError(
            f"{where}: the number of IPUs that share a stage's tensors is a power of two, at most"
            f" {MAX_IPUS}, not {shards!r}: IPUs of a replica are a power of two, and those of a"
            " stage lie side by side"
        )
    if plan == AUTO:
        return TensorSharding(shards)
    if not isinstance(plan, Mapping) or not all(isinstance(name, str) for name in plan):
        raise UsageError(
            f"{where}: the plan is a dict of module names and styles, such as {{'layers.*.mlp.up':"
            f" ColwiseParallel()}}, or 'auto' for a model with a tp_plan, not {plan!r}"
        )
    for name, style in plan.items():
        _check_style(f"{where}: {name!r}", style)
    return TensorSharding(shards, dict(plan))


def _words(style: Any) -> str:
    if isinstance(style, str):
        return style
    layouts = [
        f"{name.removesuffix('_layouts')}={value}"
        for name, value in sorted(vars(style).items())
        if name.endswith("_layouts")
    ]
    return f"{type(style).__name__}({', '.join(layouts)})"


def _check_style(where: str, style: Any) -> None:
    if isinstance(style, str) and style not in _STYLES:
        raise UsageError(f"{where}: {style!r} is not a style; known words are {', '.join(_STYLES)}")
    if not isinstance(style, str) and not hasattr(style, "_apply"):
        raise UsageError(
            f"{where}: a style is one of torch.distributed.tensor.parallel (ColwiseParallel(),"
            f" RowwiseParallel(), SequenceParallel(), PrepareModuleInput(...) ...) or one of"
            f" {', '.join(_STYLES)}, not {style!r}"
        )


def styles_of_modules(
    sharding: TensorSharding, model: torch.nn.Module
) -> dict[str, tuple[Any, ...]]:
    """The styles of each module that the plan names, in the order of the model.

    Error if a name of the plan matches no module, or if the model has no plan of its own.
    """
    plan = _own_plan(model) if isinstance(sharding.plan, str) else sharding.plan
    names = [name for name, _ in model.named_modules() if name]
    module_styles: dict[str, list[Any]] = {}
    for pattern, style in plan.items():
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched and pattern != "":
            raise UsageError(
                f"{sharding}: the plan's {pattern!r} is not a module of {type(model).__name__}; it"
                f" has {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}. '*' stands for"
                " any part of a name"
            )
        for name in matched or [""]:
            module_styles.setdefault(name, []).append(style)
    order = ["", *names]
    return {name: tuple(module_styles[name]) for name in order if name in module_styles}


def _own_plan(model: torch.nn.Module) -> Mapping[str, Any]:
    """The plan of a Hugging Face model, or of the model that it wraps."""
    for prefix, module in model.named_modules():
        plan = getattr(module, "tp_plan", None) or getattr(module, "_tp_plan", None)
        if isinstance(plan, Mapping) and plan:
            for name, style in plan.items():
                _check_style(f"tp_plan of {type(module).__name__}, {name!r}", style)
            return {f"{prefix}.{name}" if prefix else name: style for name, style in plan.items()}
    raise UsageError(
        f"Options.tensorSharding(..., 'auto'): {type(model).__name__} has no tp_plan of its own;"
        " give a plan, such as {'layers.*.mlp.up': 'colwise', 'layers.*.mlp.down': 'rowwise'}"
    )


__all__ = ["AUTO", "TensorSharding", "checked", "styles_of_modules"]
