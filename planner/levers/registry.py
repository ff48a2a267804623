"""All levers: the values each may have, what it changes, and its words.

A lever is an entry here and a field of `Levers`; advice, insights, relief and commands ask here.
`ipu_exec.script_levers` applies it in the compile and reads `Lever.argument`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from ipuscope.planner.levers.levers import Basis
from ipuscope.planner.levers.script_lines import (
    in_lightning,
    location_line,
    overlap_lines,
    stages_line,
)
from ipuscope.planner.levers.settings import STATES, Levers, divisors
from ipuscope.planner.levers.waits import WORK, Waits
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler import units
from ipuscope.profiler.enums import PipelinePhase
from ipuscope.profiler.provenance import LIGHTNING, Provenance
from ipuscope.profiler.timeline import closed_forms

MORE = 32  # times as many samples a weight update, if more are allowed without a number
RATIOS = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)  # estimates farther off say little
_MORE_MICRO_BATCHES = 4
_ON_LINKS = ("copy between IPUs", "host I/O")
_ROOM = "room "  # begins a detail that says what the tiles need room for


@dataclass(frozen=True)
class Allowed:
    """What an advice may change in the training.

    ``half``: the precision. ``samples``: the most of a weight update over all replicas; 0: as many
    as now, divided into other micro-batches.
    """

    half: bool = False
    samples: int = 0


KEEP = Allowed()


def anything(basis: Basis) -> Allowed:
    """Half precision, and up to `MORE` times the samples of a weight update."""
    return Allowed(True, MORE * basis.costs.samples * basis.costs.micro_batches)


@dataclass(frozen=True)
class Lever:
    """A setting of a script that can be changed.

    ``name``: the field of `Levers`; ``argument``: its form for ``ipu-run --with``, empty if another
    option takes it; ``words``: the change in words; ``code``: the line to write in the script;
    ``finding``: title and detail of the insight that advises it, and what it is about;
    ``settings``: the values worth trying alone, without the present one; ``doubt``: the share of
    its gain that the estimate may be off (docs/advice.md#estimates), 0 if the costs are the
    profile's; ``least_doubt``: the share of the rate that it may be off whatever it gains;
    ``is_estimate``: whether costs with it are estimates (None: if there is doubt).
    """

    name: str
    argument: Callable[[Any], str]
    words: Callable[[Basis, Any], str]
    code: Callable[[Basis, Any], str]
    finding: Callable[[Basis, Any], tuple[str, str, Waits]]
    settings: Callable[[Basis, Allowed], list[Any]] = lambda basis, allowed: []  # a search finds it
    doubt: float = 0.0
    least_doubt: float = 0.0
    is_estimate: Callable[[Basis, Any], bool] | None = None

    def estimate(self, basis: Basis, value: Any) -> bool:
        """Whether costs with it are estimates."""
        return self.doubt > 0 if self.is_estimate is None else self.is_estimate(basis, value)


def _sizes(basis: Basis, allowed: Allowed) -> list[int]:
    """Sizes in samples, with as many micro-batches; none if 0 are allowed, or there is one."""
    if basis.one_size:
        return []
    per_update = basis.costs.samples // basis.micro_batch
    sizes = [basis.micro_batch * ratio for ratio in RATIOS]
    # 0 samples: a file that contradicts itself
    most = allowed.samples // max(1, per_update * basis.costs.micro_batches)
    return [int(size) for size in sizes if size == int(size) and 1 <= size <= most]


def _about_size(basis: Basis, value: int) -> tuple[str, str, Waits]:
    detail = (
        f"With {value}, more samples share the start-up cost of each step and the weights that it"
        " moves."
        if value > basis.micro_batch
        else f"With {value}, tiles need less memory at a time."
    )
    title = f"a micro-batch has {units.count(basis.micro_batch, 'sample')} and could have {value}"
    return title, detail, Waits(causes=WORK)


def _accumulation(basis: Basis, value: int) -> str:
    spoken = "gradient accumulation" if basis.costs.training else "device iterations"
    return f"{spoken} of {value} instead of {basis.costs.micro_batches}"


def _accumulation_line(basis: Basis, value: int) -> str:
    method = "Training.gradientAccumulation" if basis.costs.training else "deviceIterations"
    return f"options.{method}({value})"


def _about_accumulation(basis: Basis, value: int) -> tuple[str, str, Waits]:
    update = " and weights are updated" if basis.costs.training else ""
    return (
        f"{basis.turn} has {units.count(basis.costs.micro_batches, 'micro-batch')}",
        f"With {value}, phases fill and drain{update} less often.",
        Waits(phases=(PipelinePhase.UPDATE,)),
    )


def _other_recomputation(basis: Basis, allowed: Allowed) -> list[bool]:
    costs = basis.costs
    stages = costs.training and costs.pipelined and len(basis.present.starts) > 1
    return [not costs.recompute] if stages else []


def _recompute_line(basis: Basis, value: bool) -> str:
    kind = "3)  # RecomputationType.Pipeline" if value else "0)  # none"
    return f'options._Popart.set("autoRecomputation", {kind}'


def _about_recomputation(basis: Basis, value: bool) -> tuple[str, str, Waits]:
    if value:
        detail = "With recomputation, stages keep fewer activations for the backward pass."
        return "stages keep all their activations", detail, Waits(causes=("stash",))
    title = "stages run their forward pass again before the backward pass"
    return title, f"{_ROOM}to keep it all", Waits(causes=WORK, directions=("recompute",))


def _fewer_outputs(basis: Basis, allowed: Allowed) -> list[str]:
    costs = basis.costs
    if not costs.training or not costs.streams.stream_out.any():
        return []
    final = [] if costs.streams.out_once or costs.micro_batches == 1 else ["final"]
    return [*final, *(["loss"] if basis.returned else [])]


def _outputs(basis: Basis, value: str) -> str:
    if value == "loss":
        return "the loss only, once a weight update"
    mode = str(basis.report.options.get("outputMode", "Default"))
    return f"outputs once a weight update (OutputMode.Final instead of {mode})"


def _outputs_line(basis: Basis, value: str) -> str:
    if value == "loss":
        final = "" if basis.costs.streams.out_once else ", and OutputMode.Final"
        return f"return loss  # alone, in forward{final}"
    return "options.outputMode(poptorch.OutputMode.Final)"


def _beside_compute(basis: Basis, allowed: Allowed) -> list[bool]:
    costs, streams = basis.costs, basis.costs.streams
    several = basis.can_split and (costs.training or costs.micro_batches > 1)
    return [True] if several and len(basis.present.starts) == 1 and streams.waited_for else []


def _other_states(basis: Basis, allowed: Allowed) -> list[str]:
    present = basis.state
    if not basis.costs.training or not basis.keeps_state or present == STATES[2]:
        return []  # a profile of the parts does not give the cost of whole state
    possible = STATES if basis.replicas > 1 else STATES[:2]
    return [state for state in possible if state != present]


def _about_state(basis: Basis, value: str) -> tuple[str, str, Waits]:
    causes = ("streaming memory", "collective over replicas")
    return (
        f"optimiser state is {basis.state.replace('-', ' ')}",
        f"{_ROOM}for it {value.replace('-', ' ')}",
        Waits(causes=causes, phases=(PipelinePhase.UPDATE,)),
    )


def _another_split(basis: Basis, value: Assignment) -> str:
    if len(set(value.ipus)) == len(value.ipus):
        return "another split"
    tied = " for its tied weight" if len(basis.costs.cuts.ties) else ""
    return f"another split, which comes back to an IPU{tied}"


LEVERS: dict[str, Lever] = {
    lever.name: lever
    for lever in (
        Lever(
            "half",
            lambda value: "half" if value else "float",
            lambda basis, value: "half precision",
            lambda basis, value: "model.half()  # and inputs.half() where they are floats",
            lambda basis, value: (
                "the weights are float32",
                "In float16, matrix units are up to 4 times as fast, vector units twice, and half"
                " the bytes move.",
                Waits(causes=(*WORK, *_ON_LINKS)),
            ),
            lambda basis, allowed: [True] if basis.sizes.halves and allowed.half else [],
            doubt=0.2,
            least_doubt=0.12,
        ),
        Lever(
            "micro_batch",
            lambda value: f"micro-batch={value}",
            lambda basis, value: f"micro-batch of {value} instead of {basis.micro_batch}",
            lambda basis, value: f"poptorch.DataLoader(options, dataset, batch_size={value})",
            _about_size,
            _sizes,
            doubt=0.4,  # of phases, whose bounds are not known
        ),
        Lever(
            "micro_batches",
            lambda value: f"micro-batches={value}",
            _accumulation,
            _accumulation_line,
            _about_accumulation,
            lambda basis, allowed: counts(basis, allowed.samples) if allowed.samples else [],
            doubt=0.15,
            is_estimate=lambda basis, value: basis.costs.accumulates_otherwise(value),
        ),
        Lever(
            "replicas",
            lambda value: f"replicas={value}",
            lambda basis, value: f"{units.count(value, 'replica')} instead of {basis.replicas}",
            lambda basis, value: f"options.replicationFactor({value})",
            lambda basis, value: (
                f"the IPUs have {units.count(basis.replicas, 'replica')} of the model",
                f"With {value}, each takes {'fewer' if value > basis.replicas else 'more'} IPUs.",
                Waits(phases=(PipelinePhase.RAMP_UP, PipelinePhase.RAMP_DOWN)),
            ),
        ),
        Lever(
            "recompute",
            lambda value: f"recompute={'yes' if value else 'no'}",
            lambda basis, value: "recomputation" if value else "no recomputation",
            _recompute_line,
            _about_recomputation,
            _other_recomputation,
        ),
        Lever(
            "outputs",
            lambda value: f"outputs={value}",
            _outputs,
            _outputs_line,
            lambda basis, value: (
                "the host is sent outputs that it need not read",
                "The IPUs wait for each of them.",
                Waits(causes=("host I/O",)),
            ),
            _fewer_outputs,
        ),
        Lever(
            "state",
            lambda value: f"state={value}",
            lambda basis, value: f"optimiser state {value.replace('-', ' ')}",
            lambda basis, value: location_line(value),
            _about_state,
            _other_states,
            doubt=1.0,  # it may gain nothing on small tensors
            is_estimate=lambda basis, value: value == STATES[2],
        ),
        Lever(
            "overlap",
            lambda value: "overlap",
            lambda basis, value: "host I/O beside compute",
            lambda basis, value: overlap_lines(basis.costs.training),
            lambda basis, value: (
                "host I/O and compute take turns",
                "I/O tiles move inputs and outputs beside the compute of other device iterations.",
                Waits(causes=("host I/O",)),
            ),
            _beside_compute,
            doubt=0.1,
        ),
        Lever(
            "split",
            lambda value: "",  # its ``--placement``
            _another_split,
            lambda basis, value: stages_line(basis.costs, value),
            lambda basis, value: (
                "the stages are uneven",
                "Another split takes less.",
                Waits(causes=WORK),
            ),
        ),
    )
}


def pulled(levers: Levers) -> Iterator[tuple[Lever, Any]]:
    """The levers that are pulled, with their values."""
    return ((LEVERS[name], getattr(levers, name)) for name in levers.pulled if name in LEVERS)


def argument(levers: Levers) -> str:
    """The levers as ``ipu-run --with`` takes them; the split is its ``--placement``."""
    words = [lever.argument(value) for lever, value in pulled(levers)]
    return ",".join(filter(None, (*words, *(f"{name}={value}" for name, value in levers.options))))


def title(basis: Basis, levers: Levers) -> str:
    """The changes in words: 'half precision, micro-batch of 8'."""
    return ", ".join(lever.words(basis, value) for lever, value in pulled(levers))


def code(basis: Basis, levers: Levers) -> tuple[str, ...]:
    """The lines to write in the script: a statement of one or more lines for each lever."""
    lines = tuple(lever.code(basis, value) for lever, value in pulled(levers))
    return in_lightning(lines) if Provenance.of(basis.report).trainer == LIGHTNING else lines


def finding(basis: Basis, levers: Levers, room: Callable[[str], str]) -> tuple[str, str, Waits]:
    """Title, detail and waits of the first lever's insight; ``room`` says if there is room.

    Other replicas come first: their accumulation and split follow.
    """
    lever, value = min(pulled(levers), key=lambda one: one[0].name != "replicas")
    heading, detail, waits = lever.finding(basis, value)
    return heading, room(detail.removeprefix(_ROOM)) if detail.startswith(_ROOM) else detail, waits


def singles(basis: Basis, allowed: Allowed) -> Iterator[Levers]:
    """Each lever alone, and micro-batches of another size with as many samples an update."""
    yield from (Levers(half=one) for one in LEVERS["half"].settings(basis, allowed))
    yield from (Levers(micro_batch=size, micro_batches=count) for size, count in cuts(basis))
    for name, lever in LEVERS.items():
        if name != "half":
            yield from (Levers(**{name: value}) for value in lever.settings(basis, allowed))


# -- micro-batches ---


def least_count(basis: Basis, stages: int = 0) -> int:
    """The fewest micro-batches that a pipeline of these stages takes (0: of the present's)."""
    stages, costs = stages or len(basis.present.starts), basis.costs
    return closed_forms.pipeline_stages(stages, costs.training) if costs.pipelined else 1


def not_priced(basis: Basis) -> list[int]:
    """Other micro-batches with the present samples that are too far off for an estimate."""
    own, samples = basis.micro_batch, basis.micro_batch * basis.costs.micro_batches
    far = [size for size in divisors(samples) if not RATIOS[0] <= size / own <= RATIOS[-1]]
    return [] if basis.one_size else far


def counts(basis: Basis, limit: int, stages: int = 0) -> list[int]:
    """Numbers of micro-batches a weight update: the least that is legal, and more."""
    costs, least = basis.costs, least_count(basis, stages)
    most = max(costs.micro_batches, limit // costs.samples)
    more = [costs.micro_batches * 2, costs.micro_batches * _MORE_MICRO_BATCHES]
    wanted = {number for number in more if least <= number <= most}
    return sorted(wanted | ({least} if costs.micro_batches < least else set()))


def cuts(basis: Basis, stages: int = 0, replicas: int = 0) -> list[tuple[int, int]]:
    """Other micro-batch sizes, with the number of them that has the present samples.

    ``replicas``: on so many (0: as profiled); there a size of 0 is the present one.
    """
    of_all = basis.micro_batch * basis.costs.micro_batches * basis.replicas
    samples, left = divmod(of_all, replicas or basis.replicas)
    if basis.one_size or left:
        return []
    smallest = max(1, ceil(basis.micro_batch * RATIOS[0]))
    largest = min(samples, int(basis.micro_batch * RATIOS[-1]))
    least, sizes = least_count(basis, stages), []
    for size in range(smallest, largest + 1):
        now = size == basis.micro_batch and (replicas or basis.replicas) == basis.replicas
        if not now and samples % size == 0 and samples // size >= least:
            sizes.append((size if size != basis.micro_batch else 0, samples // size))
    return sizes
