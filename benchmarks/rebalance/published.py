"""Splits that people tuned by hand and published, held against equal Blocks and against ours.

``python -m benchmarks.rebalance.published`` compiles each and writes the section of
docs/rebalance.md; ``--only NAME`` (may be repeated) makes that row anew and leaves the others. Ours
is proposed from the profile of the published split alone. The prediction held where cycles come
within half a percent and where what fits was said to fit, or to be too close to call.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ipu_exec
from benchmarks.rebalance import hugging_face, mini_dalle, speech
from benchmarks.rebalance.__main__ import DEFAULT, PAGE, PUBLISHED, Settings, compiled, profile
from examples.models import Example, build
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, Prediction, placement_file, what_if
from ipuscope.planner.search.split_search import quickest

ACCUMULATION = 64
CLOSE = 0.005  # of the cycles
_END = re.compile(r"\n(?=## |Cycles an update over those)")


@dataclass(frozen=True)
class Published:
    """Layers per IPU, and whether the head is on the first IPU (as its own stage) or the last."""

    model: str
    layers: tuple[int, ...]
    head_first: bool
    source: str  # below a folder of graphcore/examples [EX], where no other is named
    begins: tuple[tuple[str, int], ...] = ()  # the first Block and the IPU of each stage
    settings: Settings = DEFAULT

    @property
    def name(self) -> str:
        """The name of the row."""
        return f"{self.model} {list(self.layers)}"

    def assignment(self, blocks: Sequence[str]) -> Assignment:
        """First and last Block are what comes before the layers and after them, unless said."""
        if self.begins:
            names, where = zip(*self.begins, strict=True)
            return Assignment(tuple(map(list(blocks).index, names)), where)
        starts, ipus, begin = [0], [0], 1 + self.layers[0]
        for ipu, count in enumerate(self.layers[1:], 1):
            starts.append(begin)
            ipus.append(ipu)
            begin += count
        if self.head_first:
            starts.append(len(blocks) - 1)
            ipus.append(0)
        return Assignment(tuple(starts), tuple(ipus))


CASES = (
    Published("vit-b16", (3, 3, 3, 3), False, "vision/vit/pytorch/configs.yml"),
    Published("bert-base", (0, 4, 4, 4), True, "nlp/bert/pytorch/configs_pretraining.yml"),
    Published("gpt2-small", (0, 4, 4, 4), True, "nlp/gpt2/pytorch/run/pretraining_small.sh"),
    Published("bert-large", (3, 7, 7, 7), True, "nlp/bert/pytorch/configs_pretraining.yml"),
    Published(
        "gpt2-medium",
        (0, 3, 3, 3, 3, 4, 4, 4),
        True,
        "nlp/gpt2/pytorch/run/pretraining_medium.sh",
    ),
)
_MINI_DALLE = Published(
    "mini-dalle",
    (0, 7, 7, 2),
    False,
    "multimodal/mini_dalle/pytorch/configs.yml (L16_CLIP_vocab)",
    (("codes", 0), ("layer0", 1), ("layer7", 2), ("layer14", 3)),
    Settings(half_partials=True),
)
_MINI_DALLE_WORDS = Published(
    "mini-dalle, its own words",
    (0, 6, 6, 4),
    False,
    "multimodal/mini_dalle/pytorch/configs.yml (L16)",
    (("codes", 0), ("layer0", 1), ("layer6", 2), ("layer12", 3)),
    Settings((0.6,) * 4, half_partials=True, state_on_chip=True),
)
_WAV2VEC2_PRETRAINING = Published(
    "wav2vec2-base",
    (6, 5, 5, 7),
    False,
    "optimum-graphcore's Graphcore/wav2vec2-base-ipu, for pretraining",
    (("convolution0", 0), ("convolution6", 1), ("layer3", 2), ("layer8", 3)),
)
_WAV2VEC2 = Published(
    "wav2vec2-base with CTC",
    (9, 4, 4, 4),
    False,
    "optimum-graphcore's Graphcore/wav2vec2-ctc-base-ipu; a convolution, the positions and the head"
    " count as layers",
    (("convolution0", 0), ("layer1", 1), ("layer5", 2), ("layer9", 3)),
)
_WHISPER = Published(
    "whisper-small",
    (5, 7, 5, 7),
    False,
    "optimum-graphcore's notebooks/whisper_finetuning.ipynb",
    (("convolutions", 0), ("encoder5", 1), ("embedding", 2), ("decoder5", 3), ("head", 2)),
    Settings((0.2, 0.2, 0.6, 0.6), half_partials=True),
)
_WHISPER_ENCODER = Published(
    "whisper-medium's encoder",
    (12, 12),
    False,
    "optimum-graphcore's notebooks/whisper-example.ipynb, of [12, 12, 13, 11]",
    (("convolutions", 0), ("encoder12", 1)),
    Settings(inference=True),
)
_WHISPER_DECODER = Published(
    "whisper-medium's decoder",
    (13, 11),
    False,
    "the same",
    (("embedding", 0), ("decoder13", 1), ("head", 0)),
    Settings(inference=True),
)
_PERCEIVER = Published(
    "perceiver-conv",
    (0, 2, 2, 2),
    False,
    "preview/multimodal/perceiver_io/pytorch/configs/pipelined_ipu_config.json",
    (
        ("preprocessor", 0),
        *((f"pass{k // 3}.layer{2 * (k % 3)}", 1 + k % 3) for k in range(24)),
        ("decoder", 0),
    ),
    Settings((0.15,) * 4),
)
_MT5_TIED = Published(
    "mt5-small, tied",
    (0, 8, 4, 4),
    False,
    "optimum-graphcore's notebooks/mt5_translation.ipynb",
    (("embedding", 0), ("encoder0", 1), ("decoder0", 2), ("decoder4", 3), ("head", 0)),
)
_MT5_UNTIED = Published(
    "mt5-small, untied",
    (0, 8, 8, 0),
    False,
    "optimum-graphcore's notebooks/mt5_translation.ipynb",
    (("embedding", 0), ("encoder0", 1), ("decoder0", 2), ("head", 3)),
)
CASES = (
    *CASES,
    *(_MINI_DALLE, _MINI_DALLE_WORDS, _WAV2VEC2, _WAV2VEC2_PRETRAINING),
    *(_WHISPER, _WHISPER_ENCODER, _WHISPER_DECODER, _PERCEIVER, _MT5_TIED, _MT5_UNTIED),
)
MAKERS = {
    **hugging_face.MAKERS,
    **speech.MAKERS,
    "mini-dalle": mini_dalle.example,
    "mini-dalle, its own words": partial(mini_dalle.example, config=mini_dalle.OWN_WORDS),
}
NOTES = (
    "ResNet-50 was published with a replica on each IPU: there is no split. BERT-Large for "
    "SQuAD has another head than the example. Whisper, Wav2Vec2, Perceiver and mT5 are those "
    f"of Hugging Face's transformers ({hugging_face.NEEDED}; "
    "benchmarks/rebalance/hugging_face.py and speech.py), mini-DALL-E is written in plain PyTorch "
    "with its frozen VQGAN encoder (benchmarks/rebalance/mini_dalle.py). Whisper and Perceiver "
    "have the memory proportions of their configurations, Whisper small and mini-DALL-E float16 "
    "partials; Whisper's projection is in five parts as published, and mT5's 250,112 words "
    "are in eight. mini-DALL-E with its own words takes two images at a time and has its "
    "optimiser's state on the chips and the usual memory proportion of 0.6, as its configuration "
    "says. Wav2Vec2's layers are not dropped at random, and its sound is of full length. Whisper "
    "medium's [12, 12, 13, 11] transcribes: its encoder and a step of its decoder, which keeps "
    "keys and values on the chip, are a program each, sharded over two IPUs; 64 device iterations "
    "stand for a loop on the device. mT5 with tied words was "
    "named, but not said to run; it fits as published."
    " What the profiled split takes is predicted to the cycle and byte. Where a tied weight travels"
    " through IPUs that only pass it on, these hold it and its gradient while IPUs exchange, which"
    " is counted: BERT-Large with its head on IPU 3, predicted from the profile of the published"
    " split, is within 1.2 % on every IPU."
)


@dataclass(frozen=True)
class Obtained:
    """The result of compiling a split: cycles per update, bytes of its fullest tile with gaps."""

    cycles: int
    fullest: int


def obtained(
    example: Example,
    assignment: Assignment,
    folder: Path,
    settings: Settings = DEFAULT,
    proposed_by: Costs | None = None,
) -> tuple[Obtained, Costs]:
    """Compile a split; also return the costs from its profile.

    ``proposed_by``: costs that propose it. It is compiled from the placement file that they write,
    as a user's is: Blocks that come to another IPU keep their memory proportion.
    """
    folder.mkdir(parents=True)
    placement = None
    if proposed_by is not None:
        placement = folder / "placement.json"
        placement.write_text(json.dumps(placement_file(proposed_by, assignment)))
    names = example.blocks
    stages = [
        ipu_exec.Stage(*names[first : last + 1]).ipu(ipu)
        for (first, last), ipu in zip(assignment.spans(len(names)), assignment.ipus, strict=True)
    ]
    sharded, ipus = settings.inference, max(assignment.ipus) + 1
    strategy = (ipu_exec.ShardedExecution if sharded else ipu_exec.PipelinedExecution)(*stages)
    executable = compiled(example, strategy, ipus, ACCUMULATION, settings, placement)
    with profile(executable, folder / "profile") as report:
        every = range(report.target.ipus_per_replica)
        fullest = max(int(report.tiles(ipu)["total"].max()) for ipu in every)
        return Obtained(executable.cycles_per_call, fullest), Costs.from_report(report)


def row(case: Published, folder: Path) -> str:
    """A row with the published split, equal numbers of Blocks, and ours."""
    example = MAKERS[case.model](False) if case.model in MAKERS else build(case.model)
    example.module.half()
    by_hand = case.assignment(example.blocks)
    human, costs = obtained(example, by_hand, folder / "human", case.settings)
    stages = len(case.layers)
    count = len(example.blocks)
    starts = tuple(round(k * count / stages) for k in range(stages))
    evenly = Assignment(starts, tuple(range(stages)))
    equal, _ = obtained(example, evenly, folder / "equal", case.settings)
    limit = costs.machine.bytes_per_tile
    told = [case.name, *_cells(human, limit), *_cells(equal, limit)]
    try:
        best = quickest(costs)
    except ValueError as error:
        return f"| {' | '.join([*told, str(error), '', '', '', '', ''])} |"
    chosen = best.prediction.assignment
    ours = human
    if (chosen.starts, chosen.ipus) != (by_hand.starts, by_hand.ipus):
        ours, _ = obtained(example, chosen, folder / "ours", case.settings, costs)
    assert best.prediction.total == what_if(costs, chosen).total
    told += [chosen.named(count), *_cells(ours, limit)]
    told += [f"{1 - ours.cycles / human.cycles:+.2%}", *_held(best.prediction, ours, limit)]
    return f"| {' | '.join(told)} |"


def _cells(found: Obtained, limit: int) -> tuple[str, str]:
    over = "" if found.fullest <= limit else ", does not fit"
    return f"{found.cycles:,}", f"{found.fullest / 1024:,.0f}{over}"


def _held(prediction: Prediction, came: Obtained, limit: int) -> tuple[str, str, str]:
    """The error, the predicted fullest tile, and whether the prediction held."""
    off = prediction.total / came.cycles - 1
    fits = came.fullest <= limit
    right = abs(off) <= CLOSE and (fits or bool(prediction.notes))
    fullest = max(prediction.fullest)
    return f"{off:+.2%}", f"{fullest / 1024:,.0f}", "yes" if right else "no"


def section(rows: Sequence[str]) -> str:
    """The section of the page."""
    heads = (
        *("model, layers an IPU", "by hand: cycles", "fullest tile, KiB", "equal Blocks: cycles"),
        *("fullest tile, KiB", "ours: Blocks a stage", "cycles", "fullest tile, KiB"),
        *("fewer cycles than by hand", "predicted off by", "fullest predicted, KiB", "held"),
    )
    sources = "; ".join(f"{one.name} in {one.source}" for one in CASES)
    words = (
        "By `python -m benchmarks.rebalance.published`: each split is compiled in fp16 with AdamW,"
        " its state off the chip, a memory proportion of 0.2 where the configuration has no other,"
        f" and accumulation {ACCUMULATION} (device iterations in inference). Ours is proposed from"
        " the profile of the published split alone; the prediction held where cycles came within"
        " 0.5 % and the memory as it was said. The splits are those of graphcore/examples [EX]:"
        f" {sources}. {NOTES}"
    )
    rule = f"| --- |{' ---: |' * (len(heads) - 1)}"
    return "\n".join([PUBLISHED, "", words, "", f"| {' | '.join(heads)} |", rule, *rows, ""])


def written(page: str, rows: Sequence[str]) -> str:
    """The page with these rows; those of other models stay as they are."""
    before, heading, rest = page.partition(PUBLISHED)
    old, *behind = _END.split(rest, maxsplit=1) if heading else [""]
    known = {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| ")}
    known |= {line.split("|")[1].strip(): line for line in rows}
    known_rows = [known[case.name] for case in CASES if case.name in known]
    return f"{before.rstrip()}\n\n{section(known_rows)}\n{''.join(behind)}".rstrip() + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Compile, print, and write the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = [case.model for case in CASES]
    parser.add_argument("--only", action="append", choices=models, metavar="NAME")
    args = parser.parse_args(argv)
    for case in CASES:
        if args.only and case.model not in args.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            line = row(case, Path(folder))
        print(line, flush=True)
        PAGE.write_text(written(PAGE.read_text(), [line]))


if __name__ == "__main__":
    main()
