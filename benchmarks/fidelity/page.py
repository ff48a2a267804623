"""The table, the summary of its groups, and docs/fidelity.md around them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.fidelity.__main__ import Result


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def table(results: Sequence[Result]) -> str:
    """Every row: predicted, published, ratio; or why there is no prediction."""
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


def whole(results: Sequence[Result], more: Sequence[Result]) -> str:
    """The page docs/fidelity.md: of the rows that were given, and of those found elsewhere."""
    return (
        f"{HEAD}\n{groups(results)}\n\n{BODY}\n{groups(more)}\n\n{MORE}\n{table(results)}\n\n"
        f"## All rows found elsewhere\n\n{table(more)}\n"
    )


HEAD = """# Fidelity: predictions against published measurements

<!-- Written by `python -m benchmarks.fidelity`: edit benchmarks/fidelity/page.py instead. -->

For users, in five lines:

1. Trust comparisons of two profiles more than their times: both share whatever is off.
2. Dense products on Bow are within a median of 4 % (fp16) and 2 % (fp32) of measurements; the worst
   is 15 % off. Large products and ordinary convolutions agree so with the vendor's own model.
3. Whole models: a median of 2 % (two rows) and 6 % (six found elsewhere); ViT is 36 % too fast.
4. Weakest: convolutions on the oldest chip (up to 1.4 times too fast), layers with few rows or
   outputs (up to 2.5 times too fast), depthwise convolutions (up to 1.5). Memory is within 9 %.
5. Choosing a split compares with a second compile of ours, which is far closer
   ([rebalancing](rebalance.md)).

`python -m benchmarks.fidelity` builds each row of `benchmarks/fidelity/validation.csv` in torch,
compiles it with `ipu_exec.inferenceModel` or `trainingModel`, reads cycles or bytes from the
compiled program, and converts cycles to time at the target's clock. The ratio is predicted over
published: above 1, the model promises more throughput than was measured. `--rows other.csv` runs
other rows with the same columns and grammar; no row is recognised by its id. Sources stand in
[the bibliography](bibliography.md) under the key in brackets.

## How close
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
chip. Two choices are fitted to all rows of this group together, none to a single row: fp16 products
keep fp16 partials (the program that measured them has an option for it; with fp32 partials only 8
of 16 units multiply), and only fp32 products copy their weights before the vertex ([TUT4] shows
that copy too). The rows with 16 columns are predicted 10-15 % too slow in fp16; a planner that
swapped the operands there would be up to 2.7 times too fast, so we do not swap them. 8192 x 128 in
fp32 is slower on hardware than its neighbours on both sides; the model does not follow.

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

`benchmarks/fidelity/more.csv` has rows that we collected ourselves. No constant was fitted to them,
but they are not a blind test either: they exposed faults that were then corrected from published
sources, and some choices were made with them in view: the orientation of a product's operands, the
rearrangement of an LSTM's forward weights at each step, layers wired like torch.nn.Linear, and
which rows of the source to copy.

"""

MORE = """**Poplibs' benchmarks** ([PLB]): cycles of Poplar's own IPUModel for GC2 and MK2, kept for
regression tests: the results in tests/benchmark_results.csv, the commands in tests/CMakeLists.txt,
the programs in tools/. Products are C += A B; layers and convolutions are a forward pass, both
gradients and the update of the weights; pooling is forward and backward, LSTMs a forward pass. The
partials are fp32 by default, which on MK2 halves the fp16 units, as the MK2 rows show plainly. The
ratio is of cycles: below 1, the model is too fast. Large products and ordinary convolutions agree
within a few per cent. GC2's largest products, which do not fit its memory at once, are cut into
serial steps more cheaply here (0.6-0.8). Layers with few rows or few outputs take 2,000-10,000
cycles more than we predict for their three products together, above all in fp16: rearrangements of
operands between passes that the model leaves out. Depthwise convolutions on MK2 (0.6-0.9) lack the
regrouping of channels, reductions a step of a few hundred cycles. Left out: embeddings (IPUModel
counts the worst case, all indices in one worker's part) and GRU (popnn's resets before its second
product, torch's after it).

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

No published row covers softmax, normalisation, gathers or the optimisers on their own: they rest on
their cycle formulas and on the whole models. Exchange between IPUs is measured by the whole models
only.

## All rows
"""
