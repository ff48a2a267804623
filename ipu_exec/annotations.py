"""Blocks assign operators to parts of a model; strategies assign Blocks to stages on IPUs.

`ipu_exec.capture.recording.open_blocks` tracks which Blocks are open.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from ipu_exec.capture.recording.open_blocks import OPEN, BlockState
from ipu_exec.enums import AutoStage, Liveness
from ipu_exec.errors import UsageError

Callee = TypeVar("Callee", bound=Callable[..., Any])


class NameScope:
    """Prefixes operator names in the profile: ``with NameScope("Attention"): ...``."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise UsageError(f"NameScope takes a name, not {name!r}")
        self.name = name

    def __enter__(self) -> NameScope:
        OPEN.scopes.append(self.name)
        return self

    def __exit__(self, *exception: object) -> None:
        OPEN.scopes.pop()


# PopTorch's operators below `NameScope`, which Graphcore's applications call in hooks.
torch.ops.poptorch.push_name_scope = OPEN.scopes.append  # type: ignore[attr-defined]
torch.ops.poptorch.pop_name_scope = OPEN.scopes.pop  # type: ignore[attr-defined]


class Attribute:
    """Gives the operators inside PopART's attributes: ``with Attribute(__outline={...}): ...``.

    Operators, and their gradients, that differ in ``__outline`` do not share code.
    """

    def __init__(self, **attributes: Mapping[str, str]) -> None:
        for name, values in attributes.items():
            if not isinstance(values, Mapping):
                raise UsageError(
                    f"Attribute: {name} takes a dict of names and values, not {values!r}"
                )
        self._attributes = [
            (name, str(k), str(v)) for name, values in attributes.items() for k, v in values.items()
        ]

    def __enter__(self) -> Attribute:
        OPEN.attributes += self._attributes
        return self

    def __exit__(self, *exception: object) -> None:
        del OPEN.attributes[len(OPEN.attributes) - len(self._attributes) :]


def _checked(
    what: str, user_id: str | int | None, ipu_id: int | None
) -> tuple[str | None, int | None]:
    if user_id is not None and (isinstance(user_id, bool) or not isinstance(user_id, (str, int))):
        raise UsageError(
            f"{what}: user_id is a name or a number, not {user_id!r}; for example {what}('B1',"
            " ipu_id=0)"
        )
    if ipu_id is not None and (
        isinstance(ipu_id, bool) or not isinstance(ipu_id, int) or ipu_id < 0
    ):
        raise UsageError(
            f"{what}: ipu_id is the number of an IPU of the replica, 0 or more, not {ipu_id!r}"
        )
    return None if user_id is None else str(user_id), ipu_id


class Block:
    """``with Block("B1", ipu_id=0): ...`` puts the operators inside into that Block.

    Operators after it stay in it until the next Block begins, which the compile reports; with
    AutoStage.AutoIncrement they are an Error, as in PopTorch. Inside another ``with Block`` they
    return to the outer one. Blocks without ``user_id`` are called "0", "1", ... in order.
    """

    def __init__(self, user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        self._user_id, self._ipu_id = _checked("Block", user_id, ipu_id)
        self._outer: list[BlockState | None] = []

    def __enter__(self) -> Block:
        self._outer.append(OPEN.block if OPEN.depth else None)
        OPEN.depth += 1
        OPEN.begin(self._user_id, self._ipu_id)
        return self

    def __exit__(self, *exception: object) -> None:
        OPEN.depth -= 1
        outer = self._outer.pop()
        OPEN.ended = outer is None
        if outer is not None:
            OPEN.block = outer

    @staticmethod
    def start(user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        """Begin a Block here; it lasts until the next one begins."""
        OPEN.begin(*_checked("Block.start", user_id, ipu_id))

    @staticmethod
    def useAutoId() -> None:
        """Number Blocks without a ``user_id`` from "0" again, as every capture does."""
        OPEN.next_id = 0


@dataclass(frozen=True, slots=True)
class _Begin:
    """The hook that `BeginBlock` puts on a layer: a class, so that modules can be pickled."""

    user_id: str | None
    ipu_id: int | None

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        OPEN.begin(self.user_id, self.ipu_id, layer=module)


def BeginBlock(
    layer_to_call: Callee, user_id: str | int | None = None, ipu_id: int | None = None
) -> Callee:
    """Begin a Block whenever ``layer_to_call`` is called; it lasts until the next one begins.

    A module is annotated and returned, a function wrapped. Error if the module begins one
    already.
    """
    name, ipu = _checked("BeginBlock", user_id, ipu_id)
    if isinstance(layer_to_call, torch.nn.Module):
        begun = _begin_of(layer_to_call)
        if begun is not None:
            raise UsageError(
                f"BeginBlock: the {type(layer_to_call).__name__} module has already been assigned"
                f" to a block ({begun.user_id!r}), and a layer begins one. Call removeBlocks(model)"
                " first to annotate it anew"
            )
        layer_to_call.register_forward_pre_hook(_Begin(name, ipu), prepend=True)
        return layer_to_call
    if not callable(layer_to_call):
        raise UsageError(f"BeginBlock takes a module or a function, not {layer_to_call!r}")
    return _BeginsBlock(layer_to_call, user_id, ipu_id)  # type: ignore[return-value]


def begins_block(module: torch.nn.Module) -> bool:
    """Whether `BeginBlock` was called on this very module."""
    return _begin_of(module) is not None


def _begin_of(module: torch.nn.Module) -> _Begin | None:
    hooks = module._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, _Begin)), None)


class _BeginsBlock:
    """A function that begins a Block when it is called; it can be pickled if the function can."""

    def __init__(
        self, function: Callable[..., Any], user_id: str | int | None, ipu_id: int | None
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._user_id, self._ipu_id = function, user_id, ipu_id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        OPEN.begin(*_checked("BeginBlock", self._user_id, self._ipu_id), layer=self._function)
        return self._function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any) -> Any:
        """Bind as a method of a class, as the function would."""
        return self if instance is None else types.MethodType(self, instance)


def module_repr(module: torch.nn.Module) -> str:
    """PyTorch's text for a module, with ``BeginBlock(...)`` before layers that begin Blocks."""
    begun = _begin_of(module)
    about = [line for line in module.extra_repr().split("\n") if line]
    children = [
        f"({name}): " + module_repr(child).replace("\n", "\n  ")
        for name, child in module.named_children()
    ]
    body = "\n  ".join([*about, *children])
    inside = f"\n  {body}\n" if children else body
    words = f"{module._get_name()}({inside})"
    return (
        f"BeginBlock(user_id={begun.user_id}, ipu_id={begun.ipu_id}) {words}"
        if begun is not None
        else words
    )


def BlockFunction(
    user_id: str | int | None = None, ipu_id: int | None = None
) -> Callable[[Callee], Callee]:
    """Decorator: the whole function runs inside that Block."""
    name, ipu = _checked("BlockFunction", user_id, ipu_id)

    def decorate(function: Callee) -> Callee:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with Block(name, ipu):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    return decorate


def removeBlocks(module: torch.nn.Module) -> None:
    """Undo `BeginBlock` on ``module`` and the modules inside it."""
    for layer in module.modules():
        for key, hook in list(layer._forward_pre_hooks.items()):
            if isinstance(hook, _Begin):
                del layer._forward_pre_hooks[key]


class Stage:
    """The Blocks that one IPU runs as one stage. ``Stage("B1", "B2").ipu(0)`` sets the IPU."""

    def __init__(self, *block_ids: str) -> None:
        if not block_ids:
            raise UsageError(
                "Stage() names no Block; give it the user_id of at least one: Stage('B1')"
            )
        wrong = next((block for block in block_ids if not isinstance(block, str)), None)
        if wrong is not None:
            raise UsageError(f"Stage takes the user_ids of Blocks (text), not {wrong!r}")
        self._blocks = tuple(block_ids)
        self._ipu: int | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of its Blocks, in the order given."""
        return self._blocks

    @property
    def ipu_id(self) -> int | None:
        """The IPU it was assigned to; None: the strategy assigns them in order."""
        return self._ipu

    def ipu(self, ipu: int) -> Stage:
        """Put the stage on that IPU (of each replica). Error if it is on another already."""
        if isinstance(ipu, bool) or not isinstance(ipu, int) or ipu < 0:
            raise UsageError(f"{self}.ipu takes the number of an IPU, 0 or more, not {ipu!r}")
        if self._ipu not in (None, ipu):
            raise UsageError(
                f"{self} is on IPU {self._ipu} and cannot be on IPU {ipu} too; make it two stages"
            )
        self._ipu = ipu
        return self

    def __repr__(self) -> str:
        blocks = ", ".join(repr(block) for block in self._blocks)
        return f"Stage({blocks})" + ("" if self._ipu is None else f".ipu({self._ipu})")


class ExecutionStrategy:
    """How Blocks become stages. ``stages`` is empty if ``auto_stage`` decides."""

    kind: ClassVar[str]
    phases: tuple[Phase, ...] = ()

    def __init__(self, *args: AutoStage | Stage | str | Iterable[str]) -> None:
        self.auto_stage = AutoStage.SameAsIpu
        self.stages: tuple[Stage, ...] = ()
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self.auto_stage = args[0]
            return
        self.stages = tuple(self._stage(arg) for arg in args)
        owners: dict[str, Stage] = {}
        for stage in self.stages:
            for block in stage.blocks:
                if block in owners:
                    raise UsageError(
                        f"{type(self).__name__}: Block {block!r} is named twice, in {owners[block]}"
                        f" and {stage}; a Block belongs to one stage"
                    )
                owners[block] = stage

    def _stage(self, arg: AutoStage | Stage | str | Iterable[str]) -> Stage:
        if isinstance(arg, Stage):
            return arg
        if isinstance(arg, str):
            return Stage(arg)
        if isinstance(arg, (list, tuple)):
            return Stage(*arg)
        raise UsageError(
            f"{type(self).__name__} takes stages, the user_ids of Blocks, lists of them, or one"
            f" AutoStage, not {arg!r}"
        )

    def stage(self, block_id: str) -> Stage:
        """The stage that names the Block. Error if none does."""
        for stage in self.stages:
            if block_id in stage.blocks:
                return stage
        raise UsageError(f"{self} names no Block {block_id!r}")

    def phase_of_stages(self) -> tuple[int, ...]:
        """The phase of each of ``stages``; empty without phases."""
        return tuple(number for number, phase in enumerate(self.phases) for _ in phase.stages)

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.stages)) or f"AutoStage.{self.auto_stage.name}"
        return f"{type(self).__name__}({inside})"


class PipelinedExecution(ExecutionStrategy):
    """Stages work at the same time, each on its own micro-batch.

    PopTorch's default strategy.

    `Phase`s, which PopTorch does not have here, are pipelines that run one after another: each
    loads its weights from streaming memory and passes all micro-batches of the weight update
    through its stages. Results wait in streaming memory for the next phase and for the backward,
    which runs the phases in reverse.
    """

    kind = "pipelined"

    def __init__(self, *args: AutoStage | Stage | str | Iterable[str] | Phase) -> None:
        self.phases = tuple(arg for arg in args if isinstance(arg, Phase))
        if self.phases and len(self.phases) < len(args):
            other = next(arg for arg in args if not isinstance(arg, Phase))
            raise UsageError(
                f"PipelinedExecution takes stages or phases, not both: {other!r} is no Phase. Put"
                " it into a Phase"
            )
        stages = [stage for phase in self.phases for stage in phase.stages]
        super().__init__(*(stages or args))

    def default_ipu(self, stage: int) -> int:
        """The default IPU of a stage of a phase: its position in the phase."""
        of = self.phase_of_stages()
        return stage - of.index(of[stage])

    def __repr__(self) -> str:
        if not self.phases:
            return super().__repr__()
        return f"PipelinedExecution({', '.join(map(repr, self.phases))})"


class ShardedExecution(ExecutionStrategy):
    """Stages work one after another on the same micro-batch."""

    kind = "sharded"


class Phase:
    """Stages that work at the same time, one per IPU; ``Phase("A", "B")`` is one stage."""

    def __init__(self, *arg: Stage | str) -> None:
        if arg and all(isinstance(item, Stage) for item in arg):
            self.stages = tuple(item for item in arg if isinstance(item, Stage))
        elif arg and all(isinstance(item, str) for item in arg):
            self.stages = (Stage(*arg),)  # type: ignore[arg-type]
        else:
            raise UsageError(
                f"Phase takes stages, or the user_ids of the Blocks of one stage, not {arg!r}"
            )

    def stage(self, idx: int) -> Stage:
        """The stage at that position."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> Phase:
        """Put each stage on an IPU. Error if the numbers of stages and IPUs differ."""
        if len(ipus) != len(self.stages):
            raise UsageError(
                f"{self} has {len(self.stages)} stages, but {len(ipus)} IPUs were given"
            )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)
        return self

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"


class PhasedExecution(ExecutionStrategy):
    """Phases run one after another, with their data loaded from streaming memory and stored there.

    Weights are loaded before each phase, and gradients wait in streaming memory for the weight
    update; ``TensorLocations.setWeightLocation`` leaves weights on the chip. `Liveness`
    determines where activations wait for the backward. Pass phases, lists of stages, or lists of
    Blocks (one stage each).
    """

    kind = "phased"
    parallel: ClassVar[bool]

    def __init__(self, *phases: Phase | Stage | str | Iterable[Stage | str]) -> None:
        only: Any = phases[0] if len(phases) == 1 else ()
        if (
            isinstance(only, (list, tuple))
            and only
            and all(isinstance(item, (Phase, list, tuple)) for item in only)
        ):
            phases = tuple(only)  # one list of all phases
        if not phases or isinstance(phases[0], AutoStage):
            raise UsageError(
                f"{type(self).__name__} needs its phases: there is no AutoStage for phased"
                " execution"
            )
        self.phases = tuple(self._phase(item) for item in phases)
        super().__init__(*(stage for phase in self.phases for stage in phase.stages))
        self.liveness = Liveness.AlwaysLive
        self.separate_backward_phase = False

    def _phase(self, item: Any) -> Phase:
        if isinstance(item, Phase):
            return item
        return Phase(*item) if isinstance(item, (list, tuple)) else Phase(item)

    def phase(self, phase: int) -> Phase:
        """The phase with that number. Error if there is none."""
        if (
            isinstance(phase, bool)
            or not isinstance(phase, int)
            or not 0 <= phase < len(self.phases)
        ):
            raise UsageError(
                f"Phases are identified by positive integers: there are {len(self.phases)}, not"
                f" {phase!r}"
            )
        return self.phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> PhasedExecution:
        """Whether the last phase's backward is its own phase; else there are 2P - 1 phases."""
        if not isinstance(use, bool):
            raise UsageError(f"useSeparateBackwardPhase takes True or False, not {use!r}")
        self.separate_backward_phase = use
        return self

    def default_ipu(self, stage: int) -> int:
        """The default IPU of a stage."""
        of = self.phase_of_stages()
        place = stage - of.index(of[stage])
        return 2 * place + of[stage] % 2 if self.parallel else place

    def __repr__(self) -> str:
        inside = [*map(repr, self.phases), f"Liveness.{self.liveness.name}"]
        inside += ["separate"] * self.separate_backward_phase
        return f"{type(self).__name__}({', '.join(inside)})"


class SerialPhasedExecution(PhasedExecution):
    """All phases on one group of IPUs (0, 1, 2 ...): loading, computing, storing in turn."""

    parallel = False

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """Set where activations wait between a phase's forward and backward."""
        if not isinstance(liveness, Liveness):
            raise UsageError(f"setTensorsLiveness takes a Liveness, not {liveness!r}")
        self.liveness = liveness
        return self


class ParallelPhasedExecution(PhasedExecution):
    """Phases on even and odd IPUs in turn: one group loads and stores as the other computes."""

    parallel = True

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Whether activations wait for the backward in streaming memory."""
        if not isinstance(off_chip, bool):
            raise UsageError(f"sendTensorsOffChipAfterFwd takes True or False, not {off_chip!r}")
        self.liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self
