"""The table, the summary of its groups, and docs/fidelity.md around them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.fidelity.__main__ import Result


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def table(results: Sequence[Result]) -> str:
    """Every row: predicted, published and ratio, or why there is no prediction."""
    lines = [
        "| row | case | quantity | predicted | published | ratio | source |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for result in results:
        row = result.row
        shown = "-" if result.predicted is None else number(result.predicted)
        ratio = "-" if result.ratio is None else f"{result.ratio:.3f}"
        lines.append(
            f"| {row.id} | {row.machine} {row.dtype} {row.case} | {row.quantity}, {row.unit} |"
            f" {shown} | {number(row.value)} | {ratio} | {row.source} |"
        )
    missing = [f"- {result.row.id}: {result.why}" for result in results if result.predicted is None]
    noted = [
        f"- {result.row.id}: {result.why}"
        for result in results
        if result.predicted is not None and result.why
    ]
    lines += ["", "Not run:", "", *missing] if missing else []
    lines += ["", "Run, but:", "", *noted] if noted else []
    return "\n".join(lines)


def groups(results: Sequence[Result]) -> str:
    """Per group: rows, median and worst |ln ratio|, and the median ratio, which shows a bias."""
    lines = [
        "| group | rows | median abs(ln ratio) | worst abs(ln ratio) | worst row | median ratio |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for name in dict.fromkeys(result.row.group for result in results):
        ran = [
            result for result in results if result.row.group == name and result.ratio is not None
        ]
        if not ran:
            lines.append(f"| {name} | 0 | - | - | none ran | - |")
            continue
        worst = max(ran, key=lambda result: result.error)
        lines.append(
            f"| {name} | {len(ran)} | {statistics.median(r.error for r in ran):.3f} |"
            f" {worst.error:.3f} | {worst.row.id} |"
            f" {statistics.median(r.ratio for r in ran if r.ratio is not None):.3f} |"
        )
    return "\n".join(lines)


def signed(results: Sequence[Result]) -> str:
    """Median |ln ratio|, median signed and worst of some results, as cells; dashes for none."""
    logs = [math.log(result.ratio) for result in results if result.ratio]
    if not logs:
        return "- | - | -"
    return (
        f"{statistics.median(map(abs, logs)):.3f} | {statistics.median(logs):+.3f} |"
        f" {max(map(abs, logs)):.3f}"
    )


MEASURED = {"cycles": "cycles", "total memory": "bytes in all", "fullest tile": "fullest tile"}


def components(results: Sequence[Result]) -> str:
    """Rows of poplibs by operator, machine and type: cycles and both measurements of memory."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        row = result.row
        mark = "marked" if row.mark else ""
        groups.setdefault((row.operator, row.machine, row.dtype, mark), []).append(result)
    heads = " | ".join(f"{words}: median | signed | worst" for words in MEASURED.values())
    lines = [f"| operator | rows | {heads} |", "| --- | ---: |" + " ---: |" * 9]
    for name, of in sorted(groups.items()):
        cells = [signed([r for r in of if r.row.quantity.startswith(words)]) for words in MEASURED]
        count = sum(r.row.quantity == "cycles" for r in of)
        lines.append(f"| {' '.join(name).strip()} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


RULES = {
    "TUT4": "all of the published report that a compile can show",
    "PSP": "points of the plot that could be read to 3 %",
    "JIA 5.5": "convolutions of the tables",
    "LBM": "the convolution of the experiments",
    "MLP v1.1": "one row; the others are in scaling.md",
    "GCP": "trainings of models in examples/ with a public configuration",
    "PLB": "every line of the benchmark file",
}
THERE = {"PLB": 439, "TUT4": 10, "LBM": 1}


def coverage(results: Sequence[Result]) -> str:
    """For each source: available rows, rows used, by which rule, and the error of unmarked rows."""
    lines = [
        "| source | rows there | taken | predicted | rule | time: median | signed | worst |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for source in dict.fromkeys(result.row.source for result in results):
        of = [result for result in results if result.row.source == source]
        timed = [result for result in of if result.row.unit != "bytes"]
        there = THERE.get(source, "not counted")
        counted = len(of) if source == "TUT4" else len(timed)
        predicted = sum(r.predicted is not None for r in (of if source == "TUT4" else timed))
        lines.append(
            f"| {source} | {there} | {counted} | {predicted} | {RULES.get(source, '')} |"
            f" {signed([result for result in timed if not result.row.mark])} |"
        )
    return "\n".join(lines)


def merged(results: Sequence[Result]) -> str:
    """Poplibs' rows, one line per benchmark: published cycles and bytes, and ratios to them."""
    cases: dict[str, list[Result]] = {}
    for result in results:
        name = result.row.id.removesuffix("-total").removesuffix("-tile")
        cases.setdefault(name, []).append(result)
    lines = [
        "| row | case | cycles | ratio | bytes in all | ratio | fullest tile | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, of in cases.items():
        row = of[0].row
        cells = [
            f"{number(one.row.value)} | {'-' if one.ratio is None else f'{one.ratio:.3f}'}"
            for one in of
        ]
        star = "*" if row.mark else ""
        about = f"{row.machine} {row.dtype} {row.case}"
        lines.append(f"| {name}{star} | {about} | {' | '.join(cells)} |")
    return "\n".join(lines)


def whole(results: Sequence[Result], more: Sequence[Result]) -> str:
    """The page docs/fidelity.md, from the given rows and those found elsewhere."""
    both = [*results, *more]
    vendor = [result for result in more if result.row.kind == "poplibs"]
    others = [result for result in more if result.row.kind != "poplibs"]
    marks = dict.fromkeys(result.row.mark for result in vendor if result.row.mark)
    legend = "\n".join(f"- {mark}." for mark in marks)
    return (
        f"{head(both)}{coverage(both)}\n\n## How close\n\n{groups(results)}\n\n{BODY}"
        f"{components(vendor)}\n\nMarked rows are other work than what is compiled here:\n\n"
        f"{legend}\n\n{groups(others)}\n\n{MORE}\n{table(results)}\n\n"
        f"## All rows found elsewhere\n\nA star marks a row that is other work than ours.\n\n"
        f"{table(others)}\n\n{merged(vendor)}\n"
    )


def head(results: Sequence[Result]) -> str:
    """What users need to know, in five lines computed from the rows."""
    unmarked = [result for result in results if result.ratio is not None and not result.row.mark]
    timed = [result for result in unmarked if result.row.unit != "bytes"]
    memory = sorted(r.error for r in unmarked if r.row.quantity == "total memory without code")

    def percent(*names: str) -> str:
        errors = [r.error for r in timed if any(name in r.row.group for name in names)]
        return f"{100 * statistics.median(errors):.0f} %" if errors else "-"

    return HEAD.format(
        products=percent("poplibs, products"),
        fp16=percent("dense products, bow fp16"),
        fp32=percent("dense products, bow fp32"),
        layers=percent("poplibs, layers"),
        convolutions=percent("poplibs, convolutions"),
        models=percent("whole models"),
        depthwise=percent("depthwise"),
        memory=f"{100 * statistics.median(memory):.0f} %" if memory else "-",
        nine=f"{100 * memory[int(0.9 * len(memory))]:.0f} %" if memory else "-",
    )


HEAD = """# Fidelity: predictions against published measurements

<!-- Written by `python -m benchmarks.fidelity`: edit benchmarks/fidelity/page.py instead. -->

For users, in five lines:

1. Trust comparisons of two profiles more than their times: both share whatever is off. A profile
   carries how far its cycles likely are from the truth, and reports show it.
2. Medians of time: products {products} (measured on Bow: fp16 {fp16}, fp32 {fp32}), layers with
   their gradients {layers}, convolutions with theirs {convolutions}, whole models {models}.
3. Bytes of tile memory, code aside: a median of {memory}, nine of ten within {nine}.
4. Weakest: depthwise convolutions ({depthwise}), convolutions of 2019's software, layers with few
   rows or outputs, reductions of little data; no published row measures other operators.
5. Choosing a split compares with a second compile of ours, which is far closer
   ([rebalancing](rebalance.md)).

`python -m benchmarks.fidelity` builds each row of `benchmarks/fidelity/*.csv` in torch, compiles it
with `ipu_exec.inferenceModel` or `trainingModel`, reads cycles or bytes from the compiled program,
and converts cycles to time at the target's clock. The ratio is predicted over published; errors are
its natural logarithm, so that 0.1 is about 10 %. For throughput above 1, and for cycles below 1,
the model is too fast. `--rows other.csv` runs other rows with the same columns and grammar; no row
is recognised by its id. Sources stand in [the bibliography](bibliography.md) under the key in
brackets. Partials are the vendor's default, float, unless a row says `partials fp16`.

## Sources

"""

BODY = """## What each group means

**Vendor's model** ([TUT4]: Poplar's own IPUModel, read from PopVision screenshots). The product of
three matrices. A step includes the exchange that feeds it, as PopVision draws it. The rows of the
second product are that product alone, with operands laid out as planned; in the chain (run cycles,
memory) it takes the result of the first one. The left operand provides the AMP unit's weights, as
in poplibs [PL]. Run cycles include 3 x 257 cycles for each of the three matrices streamed in and
the one streamed out, and no transfer time, because IPUModel counts none; which tensors [TUT4]
streamed is our reading. Memory leaves out stacks, for which that report has no room, and
always-live memory also leaves out code, which its list does not name. We have fewer vertices than
the vendor (about one per compute set and tile), hence less vertex state.

**Dense products on Bow** ([PSP], measured, read from a plot to about 3 %). Operands are on the
chip. The rows in fp16 say that they were measured with half partials: the program that measured
them has an option for it, and the fastest exceed what 8 of 16 units could multiply, which is all
that float partials leave. Nothing is fitted to this group. fp32 is predicted 6 % too fast: an
earlier rule, that only fp32 products copy weights which lie as planned, met it but has no cause in
poplibs' sources and is gone. The rows with 16 columns are predicted 10-15 % too slow in fp16; a
planner that swapped the operands there would be up to 2.7 times too fast, so we do not swap them.
8192 x 128 in fp32 is slower on hardware than its neighbours on both sides; the model does not
follow.

**Convolutions on GC2** ([JIA], measured in 2019 on early software; [LBM], cycles). The formulas are
those of later software and the best split of its planner. Predictions are 15-20 % too fast in the
middle and up to 1.43 times too fast at the largest batches, where the measured throughput falls
again (Conv2_3: 73 at batch 32, 66 at 128) and ours does not. Nothing is fitted to this group. The
fp32 convolution of [LBM] is predicted 18 % too fast (its ratio is of cycles: below 1 means fewer).

**Whole models** ([MLP], [GCP]) in their published configuration: replicas, accumulation,
micro-batch, stages, memory proportion and optimiser are read from the row. What the row leaves open
comes from Graphcore's public configurations [EX]: ResNet-50 keeps the outputs of ten residual
blocks and recomputes the rest except what follows the last of them, with a memory proportion of
0.12 and half partials (applications/pytorch/cnns/train/configs.yml); its images arrive as 8-bit
integers and are normalised on the IPU, and no tiles are set aside to overlap that with computing
(applications/tensorflow/cnns/training/configs.yml, mk2_resnet50_mlperf_pod16_lars); BERT keeps the
output of each encoder layer. One difference remains: our GELU is the exact one. The tied embedding
and head are stages 0 and 4, both on IPU 0.

## Rows found elsewhere

`benchmarks/fidelity/poplibs.csv` is a source registered whole by `python -m
benchmarks.fidelity.poplibs CHECKOUT`: every line of poplibs' benchmark file ([PLB], of October
2020), with cycles of Poplar's own IPUModel for GC2 and MK2, the bytes of its liveness report (no
code) and the fullest tile with gaps. `more.csv` has whole models. No constant was fitted to these
rows, but they are not a blind test: faults that they exposed were corrected from poplibs' sources,
and where two readings of a source were possible (whether the exchange of partials counts the one
that is there already) the one that more sources agree with was taken.

"""

MORE = """**Poplibs' benchmarks**: products are C += A B; layers and convolutions are a forward
pass, both gradients and the update of the weights, in this order; pooling is forward and backward,
recurrent layers a forward pass. What differs most: depthwise convolutions, of which the software of
2020 keeps two to three times the memory; layers with few rows or few outputs, whose small
rearrangements add up to 2,000-5,000 cycles that are missing here; first layers of few channels
(25 % too fast); GC2's largest products, which exchange their inputs again at each serial step in
the software of 2020 and once in that of 2023, which we follow; sums of squares, which torch makes
in two operators. MK2's fullest tile is mostly the 212,992 bytes below region 1.

**Whole models** ([GCP]: pre-release SDK 2.5, and SDK 3.1 and 3.3 for BERT-Base). The configurations
come from [EX]: nlp/bert/pytorch/configs_pretraining.yml, vision/vit/pytorch/configs.yml,
vision/cnns/pytorch/train/configs.yml. Some results were published for PopART or TensorFlow and
stand beside PyTorch's configuration of the same model; ViT's 512 accumulations are derived from its
global batch. ViT is predicted 1.3 times too fast; its public configuration mixes and augments
images on the host (mixup, extra_aug), which may be what limits the published run, but that is a
guess.

**Scaling** of ResNet-50 and BERT-Large from 16 to 256 IPUs, against the logs of [MLP], is a page of
its own: [Scaling over replicas](scaling.md).

## What no row here can tell

No published row covers softmax, normalisation or the optimisers on their own: they rest on
their cycle formulas and on the whole models. Exchange between IPUs is measured by the whole models
only.

## All rows
"""
