"""The table, the summary of its groups, and docs/fidelity.md around them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchmarks.fidelity import bars, constants, increments, store
from benchmarks.fidelity.fits import Verdict
from benchmarks.fidelity.fits import section as fitting

if TYPE_CHECKING:
    from benchmarks.fidelity.cases import Row
    from benchmarks.fidelity.store import Result


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
            result
            for result in results
            if result.row.group == name and result.ratio is not None and not result.row.mark
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


MODELS = ("BERT-Base", "BERT-Large", "ResNet-50", "ViT-B/16", "nanoGPT")


def same_model(results: Sequence[Result]) -> str:
    """Ratios of throughput of each model, of inference and of training."""
    lines = ["| model | inference | training |", "| --- | --- | --- |"]
    for model in MODELS:
        of = [r for r in results if r.row.case.startswith(model) and r.ratio is not None]
        timed = [r for r in of if r.row.unit != "bytes"]
        forward = [r for r in timed if "inference" in r.row.case]
        training = [r for r in timed if "inference" not in r.row.case]
        if forward and training:
            lines.append(f"| {model} | {_ratios(forward)} | {_ratios(training)} |")
    return "\n".join(lines)


def _ratios(results: Sequence[Result]) -> str:
    return ", ".join(f"{r.ratio:.2f} ({r.row.machine})" for r in results if r.ratio is not None)


MICRO_BATCHES = "of training, one more micro-batch"
# What issue by issue is wanted of groups of rows: median and worst |ln ratio|.
WANTED: dict[str, tuple[float, float]] = {
    "products": (0.03, 0.20),
    "convolutions": (0.08, 0.30),
    "convolutions of 2019's software": (0.12, 0.45),
    "recurrent, reductions, pooling": (0.12, 0.40),
    "whole models, training": (0.10, 0.30),
    MICRO_BATCHES: (0.10, 0.30),
    "whole models, inference": (0.10, 0.30),
    "stages of a pipeline": (0.10, 0.30),
}


def reach_group(row: Row) -> str | None:
    """The line of the table of reach that a row belongs to."""
    if row.unit == "bytes" or row.unit == "tiles":
        return None
    if row.group == "whole models, components":
        return "stages of a pipeline"
    if row.group.startswith("whole models"):
        return "whole models, inference" if "inference" in row.case else "whole models, training"
    if row.source.startswith("JIA"):
        return "convolutions of 2019's software"
    if row.operator in ("products", "layers"):
        return "products"
    return "convolutions" if "->" in row.case else "recurrent, reductions, pooling"


def reach(results: Sequence[Result]) -> str:
    """For each group: the wanted median and worst error, and what it has."""
    known = [result for result in results if result.ratio is not None]
    lines = [
        "| what | rows | wanted: median | worst | has: median | worst | within wanted worst |"
        " with marked rows: rows | median |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (median, worst) in WANTED.items():
        of = [r for r in known if reach_group(r.row) == name]
        errors = [r.error for r in of if not r.row.mark]
        if name == MICRO_BATCHES:
            errors = increments.errors(known)
        if not errors:
            continue
        inside = sum(error <= worst for error in errors) / len(errors)
        marked = f"{len(of)} | {statistics.median(r.error for r in of):.3f}" if of else "- | -"
        lines.append(
            f"| {name} | {len(errors)} | {median:.2f} | {worst:.2f} |"
            f" {statistics.median(errors):.3f} | {max(errors):.3f} | {math.floor(100 * inside)}% |"
            f" {marked} |"
        )
    every = [r.error for r in known if is_total_memory(r.row)]
    memory = [r.error for r in known if is_total_memory(r.row) and not r.row.mark]
    if memory:
        inside = sum(error <= 0.15 for error in memory) / len(memory)
        lines.append(
            f"| memory, nine of ten within 0.15 | {len(memory)} | 0.06 | 0.15 |"
            f" {statistics.median(memory):.3f} | {max(memory):.3f} | {math.floor(100 * inside)}% |"
            f" {len(every)} | {statistics.median(every):.3f} |"
        )
    return "\n".join(lines)


# What of a row's case no public source says, and which rows that is about; the first that holds.
MISSING: dict[str, Callable[[Row], bool]] = {
    "workers share few blocks of a transposition since December 2021, not in software of then": (
        lambda row: row.operator == "layers" and row.dtype == "fp16"
    ),
    "groups put together, with a stride between their inputs: what is copied on a tile": (
        lambda row: "groups" in row.case
    ),
    "first layers of four channels: what is copied where they are expanded": lambda row: (
        re.search(r"\b4->", row.case) is not None
    ),
    "how gradients are reduced between racks (docs/scaling.md): 6.8 ms of an update": lambda row: (
        "256 replicas" in row.case
    ),
    "how Poplar copies rows of 197 halves; whether the host sets the pace": lambda row: (
        row.case.startswith("ViT")
    ),
    "not found: the planner of then gives the split that is compiled here": lambda row: (
        row.operator == "pooling"
    ),
    "what PopART's loss does beside its formula: encoding labels, masks, scaling": lambda row: (
        row.quantity == "forward of stage 3"
    ),
}


def beyond(results: Sequence[Result]) -> str:
    """Unmarked rows beyond the wanted worst error, by what is not known of them."""
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.ratio is None:
            continue
        name = reach_group(result.row)
        if name is None or result.row.mark or result.error <= WANTED[name][1]:
            continue
        why = next((words for words, holds in MISSING.items() if holds(result.row)), "not known")
        rows.setdefault((name, why), []).append(result)
    lines = ["| what | not public | rows | ln ratio | which |", "| --- | --- | ---: | ---: | --- |"]
    for (name, why), of in sorted(rows.items()):
        logs = sorted(math.log(result.ratio) for result in of if result.ratio)
        ids = ", ".join(result.row.id.removeprefix("plb-") for result in of)
        lines.append(f"| {name} | {why} | {len(of)} | {logs[0]:+.2f} to {logs[-1]:+.2f} | {ids} |")
    return "\n".join(lines)


def is_total_memory(row: Row) -> bool:
    """Whether a row is the bytes of one of poplibs' benchmarks over all tiles."""
    return row.kind == "poplibs" and row.quantity.startswith("total memory")


MEMORY_MISSES = {
    "CTC loss": "-",
    "convolutions": "other plans that cost as much (see above), first layers of 3 or 4 channels",
    "depthwise": "a function's tensors counted throughout (see above); gradients with a stride",
    "layers": "other copies of operands that are put in order",
    "LSTM": "another split on MK2: 64 partials here, 8.4 MB of them and 7.9 MB arriving, where the"
    " published total leaves 9.9 MB for all but the weights",
    "pooling": "another split of the planner of then",
    "products": "splits in steps, on GC2",
    "reductions": "34 rows of 8 channels, which six workers share here",
}


def memory_misses(results: Sequence[Result]) -> str:
    """For each operator: rows of bytes in all, how many are beyond 15%, and why."""
    lines = [
        "| bytes in all | rows | beyond 15% | ratios of these | what differs |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    for operator, why in sorted(MEMORY_MISSES.items()):
        of = [
            result
            for result in results
            if is_total_memory(result.row) and result.row.operator == operator
        ]
        known = [r.ratio for r in of if r.ratio is not None and not r.row.mark]
        beyond = [ratio for ratio in known if abs(math.log(ratio)) > 0.15]
        ratios = f"{min(beyond):.2f} to {max(beyond):.2f}" if beyond else "-"
        lines.append(f"| {operator} | {len(known)} | {len(beyond)} | {ratios} | {why} |")
    return "\n".join(lines)


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
    "PSP": "points of the plot that could be read to 3%",
    "JIA 5.5": "convolutions of the tables",
    "LBM": "distinct results of one IPU with images of known size; all are in fits.csv",
    "MLP v1.1": "all submissions from 16 to 256 IPUs, which scaling.md has too",
    "GCP": "trainings of models in examples/ whose public configuration has the published global"
    " batch; others do not run, see below",
    "PLB": "every line of the benchmark file",
    "POPRT": "every result of the benchmarks' pages; those without a model in examples/ do not run",
    "POPRT examples": "every rate and out-of-memory of examples/resnet50 in fp32 and fp16, on real"
    " and on synthetic data; their number of batches a call is not public (128 here)",
    "TF": "whole programs of the tests rnn_test, matmul_size_test and resnet_size_test",
    "BMP": "every result of the IPU's reports; those without a model in examples/ do not run",
    "FAI": "the memory of the demo that ran out of it, read off its figure",
    "EX pipelining": "each stage's forward and backward, each IPU's copies and an update of the"
    " trace, read off its figure to a pixel (660 cycles)",
}
THERE = {"EX pipelining": 13, "PLB": 555, "TUT4": 10, "LBM": 36, "POPRT": 20, "BMP": 19, "FAI": 2}


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
        rule = RULES.get(source, RULES.get(source.split()[0], ""))
        rows = of if source == "TUT4" or not timed else timed
        counted, predicted = len(rows), sum(r.predicted is not None for r in rows)
        lines.append(
            f"| {source} | {there} | {counted} | {predicted} | {rule} |"
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


def whole(results: Sequence[Result], more: Sequence[Result], verdicts: Sequence[Verdict]) -> str:
    """The page docs/fidelity.md, from the given rows, those found elsewhere and what fits."""
    both = [*results, *more]
    vendor = [result for result in more if result.row.kind == "poplibs"]
    others = [result for result in more if result.row.kind != "poplibs"]
    marks = dict.fromkeys(result.row.mark for result in vendor if result.row.mark)
    legend = "\n".join(f"- {mark}." for mark in marks)
    return (
        f"{head(both)}{reach(both)}\n\n{REACH}{beyond(both)}\n\n"
        f"{MEMORY}{memory_misses(vendor)}\n\n{bars.section(both, verdicts)}\n\n"
        f"{constants.section(both)}\n\n"
        f"## Sources\n\n{coverage(both)}\n\n{SEARCHED}{FITS}{fitting(verdicts)}\n\n"
        f"{SAME_MODEL}{same_model(both)}\n\n{INCREMENTS}{increments.section(both)}\n\n"
        f"## How close\n\n{groups(results)}\n\n{BODY}"
        f"{components(vendor)}\n\nMarked rows are other work than what is compiled here:\n\n"
        f"{legend}\n\n{groups(others)}\n\n{MORE}\n{table(results)}\n\n"
        f"## All rows found elsewhere\n\nA star marks a row that is other work than ours.\n\n"
        f"{table(others)}\n\n{merged(vendor)}\n"
    )


def head(results: Sequence[Result]) -> str:
    """What users need to know, in five lines computed from the rows."""
    unmarked = [result for result in results if result.ratio is not None and not result.row.mark]
    timed = [result for result in unmarked if result.row.unit != "bytes"]
    memory = sorted(r.error for r in unmarked if is_total_memory(r.row))

    def percent(*names: str) -> str:
        errors = [r.error for r in timed if any(r.row.group.startswith(name) for name in names)]
        return f"{100 * statistics.median(errors):.0f}%" if errors else "-"

    def training() -> str:
        errors = [r.error for r in timed if r.row.group == "whole models"]
        return f"{100 * statistics.median(errors):.0f}%" if errors else "-"

    def micro_batch() -> str:
        errors = increments.errors(results)
        return f"{100 * statistics.median(errors):.0f}%" if errors else "-"

    return HEAD.format(
        commit=store.commits(results),
        products=percent("poplibs, products"),
        fp16=percent("dense products, bow fp16"),
        fp32=percent("dense products, bow fp32"),
        layers=percent("poplibs, layers"),
        convolutions=percent("poplibs, convolutions"),
        models=training(),
        micro_batch=micro_batch(),
        inference=percent("whole models, inference"),
        depthwise=percent("poplibs, depthwise"),
        memory=f"{100 * statistics.median(memory):.0f}%" if memory else "-",
        nine=f"{100 * memory[int(0.9 * len(memory))]:.0f}%" if memory else "-",
    )


HEAD = """# Fidelity: predictions against published measurements

<!-- Written by `python -m benchmarks.fidelity`: edit benchmarks/fidelity/page.py instead. -->

Predictions are of commit {commit}; `make figures` makes all pages of figures again.

For users, in five lines:

1. Trust comparisons of two profiles more than their times: both share whatever is off. A profile
   carries how far its cycles likely are from the truth, and reports show it.
2. Medians of time: products {products} (measured on Bow: fp16 {fp16}, fp32 {fp32}), layers with
   their gradients {layers}, convolutions with theirs {convolutions}, trained
   models {models} (one more micro-batch of theirs {micro_batch}), inference {inference}.
3. Bytes of tile memory, code aside: a median of {memory}, nine of ten within {nine}.
4. Weakest: depthwise convolutions ({depthwise}), convolutions of 2019's software, layers with few
   rows or outputs, losses; no published row measures norms, softmax and optimisers on their own.
5. Choosing a split compares with a second compile of ours, which is far closer
   ([rebalancing](rebalance.md)).

`python -m benchmarks.fidelity` builds each row of `benchmarks/fidelity/*.csv` in torch, compiles it
with `ipu_exec.inferenceModel` or `trainingModel`, reads cycles or bytes from the compiled program,
and converts cycles to time at the target's clock. The ratio is predicted over published; errors are
its natural logarithm, so that 0.1 is about 10%. For throughput above 1, and for cycles below 1,
the model is too fast. `--rows other.csv` runs other rows with the same columns and grammar; no row
is recognised by its id. Sources stand in [the bibliography](bibliography.md) under the key in
brackets. Partials are the vendor's default, float, unless a row says `partials fp16`.

## Reach

What is wanted of each group of rows, and what it has; rows that are other work than ours, which a
mark in their file says, apart, and in the last two columns among the others.

"""

MEMORY = """## Bytes that are off

Rows of [PLB] whose bytes in all are more than 15% off, rows of other work apart, and what differs.
A tile that works has about 0.7 kB that no public source explains: 2% of a convolution. Poplar's own
copies for rearrangements, and what they need besides, are not public. Two choices were made in view
of these rows. A copy that was put in order is free once it was sent: kept until its product has
run, BERT's layers were 0 to 7% too large where their plan is the vendor's, freed they are all
within 1% but two. And a function's own operands and result, which the tool of convolutions has,
count throughout: if they died with it, convolutions would lack 7% (median), depthwise ones would
be nearer.

"""

REACH = """The wanted bounds that are missed, and what of that public knowledge leaves open:

- Layers of few rows or outputs: putting operands in order takes what poplibs' own regression over
  10,000 cases says ([cycles](cycles.md#copies)); Poplar's copies, whose lowering is not public, may
  take other. Of 1,000 inputs in fp16 [PLB]'s software copied all groups, that since June 2022 one:
  these rows take 10 to 25% less here. What is put in order anyway has no such copy besides.
- Training of whole models: BERT's micro-batches are 6 to 13% too fast, and its updates take 0.2 s
  more ([below](#what-one-more-micro-batch-takes)); the cause of neither is found, nor what ViT
  lacks. BERT-Base at sequence 384 is TensorFlow 2's, and compiled as PyTorch's program would be:
  where all were published, in phase 1, TensorFlow 2's takes 8% longer than PopART's and 5% longer
  than PyTorch's (15,173, 16,391 and 15,911 sequences/s).
- Stages of a pipeline: small tensors, on hardware. First convolution, last layer and loss are off
  by a quarter in opposite directions; nothing public tells what else runs in their bars.
- Convolutions of [JIA] are of software of early 2019. poplibs' history goes back that far, but its
  planner and vertices of then are another program, which is not built a second time here: those of
  fp16 became quicker in 2021 and 2022, and are counted as they are since.
- Inference of [POPRT]'s ResNet-50: in fp32 5 to 8% too fast at all batches, in fp16 within 5% from
  batch 16 on, and 6 to 11% too fast at batches 1 to 4: either lacks 20 to 30 us a batch, as 150
  calls of a copy on the tiles take ([IS]); what Poplar copies around exchanges is not public.
- Reductions' and poolings' fullest tile is where poplibs' *tool* maps its test tensor (8 bytes a
  tile in turn, or a whole region 1), not what an operator in a model would find.
- Gather: the vendor's model has one of a tile's six workers find all its rows; six times the cycles
  here are 0.85 to 0.97 of the published ones, which measures the plan, not the hardware.
- Bytes: see below; what Poplar itself holds is not public. Of [TF]'s programs the serialised
  product's parts are put together by a copy here, of which Poplar's concatenation is a view; the
  perceptron's gradient is there twice, in its own order and the weight's, but published with two
  samples are twice the bytes of one. What recurrent layers lack, 13 to 36%, is not found.
- Norms, softmax, optimisers: no published row measures one on its own.

To tell a choice of the planner from what its program takes, poplibs' planner of March 2021 was
built with a stand-in for Poplar's headers and asked for the plans of these benchmarks. Its cost of
a plan is ours to 1% (median); six in ten plans of convolutions and nine in ten of products and
layers are the same, the others cost about as much but need not hold as many bytes: vertices of 2023
take other cycles than those of 2021, and a convolution's output channels may take in its kernel
(outChanFlattenDims), which is not done here: of 294 passes 14 have it, and but for the weights'
gradients of VGG's first layer, which it makes 8 to 10% cheaper, the plan here costs at most 3%
more. What is left beyond the wanted bounds is this.

"""

SEARCHED = """Read for measurements, and left out by the rule that a row has to say its machine, its
sizes and what is counted, and that an IPU's work is what it measures:

- [EX]: READMEs, notebooks and outputs of all tutorials and applications. efficient_data_loading has
  throughputs of a small classifier on synthetic data (47,324, 46,739 and, of two replicas, 46,384
  images/s): a call takes twice as long with twice the images on twice the IPUs, so the host's
  copying is measured. popxl's digits (37,989 and 99,972 samples/s) count one call of 128 images
  from and to the host. tut6_matrix_vector_opt has totals of its own vertex, 99.7% of them the host.
- Hugging Face's optimum-graphcore, all notebooks: BERT-Large's fine-tuning shows 557 to 632
  sequences/s in the left-overs of several runs whose machines and settings are not those saved with
  them; packed BERT's 6,000 to 45,000 samples/s depend on lengths that are not published.
- [LBM]: its other experiments run vertices of its own (stencils, blurs), no operator of torch.
- [POPRT], [BMP]: models that are not in examples/ (CLIP, Swin, Conformer, RoFormer, WideDeep,
  DeBERTa, NeRF, VideoBERT) or types of 8 bits are listed and do not run.
- PopSparse's other curves are sparse products; its dense ones are [PSP].
- Repositories of PopART, PopTorch, Keras add-ons, tutorials' kernel benchmarks and examples-utils:
  scripts that measure, no results. [TF]'s tests have cycles and bytes of whole programs, of which
  the rows are those that torch can write; tests of loops and functions of TensorFlow's own are not.
- Papers on graph neural networks, Fourier transforms, sparse and graph algorithms on IPUs: only
  summaries are within reach of our search, without tables; their programs are vertices of their
  own. Of Graphcore's performance pages only the beginnings are within reach: four tables of
  training ([GCP]: 2.5, 3.0, 3.1, and 3.1 to 3.3), each cut off; none of inference, none of MK2.

"""

FITS = """## Fits or not

Each case that was published as having run, or as out of memory, and what a compile here says. The
measured rows of the other tables ran, so they have to fit. A convolution of [LBM] on an image that
is no longer public (its size is not known) is left out; it is the one that ran out of memory. For
the others of that series the planner keeps the memory proportion exactly where the vendor's did
(0.1 for the small image, 0.2 for the large one, in both types); below, its software of 2020 took
the split with the least memory and was 27 to 36 times slower, which poplibs changed in June 2020
(the bound doubles instead, [PL, lib/poplin/ConvPlan.cpp], minimizeMemory), and we follow that.
BERT-Base at sequence 256 on a C600 is of [POPRT, examples/bert/README.md], in fp32 and in fp16 with
half partials, its GELU and norms left to fp32 and 32 I/O tiles, as its script has it; what that
leaves open (the memory proportion, the passes over its attention) is PopRT's default, which is not
public. Two of these fit here by 26 KiB (fp32, batch 4) and 64 KiB (fp16, batch 32) and did not
there. Of what was compiled in their place, two things are public and left out: the graph is
Google's, with a mask for each pair of tokens and a product each for queries, keys and values, and
in the release of that table the script saved the fp32 model before norms and GELU were put
together, so that they ran written out (9 KiB a tile more, and 11 in fp16); and PopART copies what
an outlined function reads, by default for as long as it runs ([POPART,
willow/include/popart/sessionoptions.hpp], subgraphCopyingStrategy), which were a function each
layer are its weights and input (23 and 21 KiB). Both together make the fp32 case run out of memory
(630 of 624 KiB) and leave the one in fp16 31 KiB; the copies alone change no verdict, and are left
out of all memory here. Its throughputs are left out: a loop in Python calls for one batch at a
time.

"""

SAME_MODEL = """## Forward and training of the same model

Where both were published: predicted over published throughput. A forward that is too slow beside a
training that is right means that errors cancel.

"""

INCREMENTS = """## What one more micro-batch takes

Some programs were published for two sizes that take the same samples to a weight update, and then
run 4 times as many micro-batches for it on the smaller one. The difference of the two updates'
times is that of the micro-batches alone: it leaves out ramps, the update's own steps, and what the
host does once a call or for the samples of an update, as long as that is the same for both. `python
-m benchmarks.fidelity` takes all pairs of rows whose cases are the same but for replicas and
accumulation, and whose samples are the same to 2%.

The rest of an update is small for EfficientNet, as here. BERT's takes 0.19 to 0.25 s more than
predicted, be it TensorFlow's or PopART's, and as much on 16 IPUs as on 64. Its state comes from
streaming memory, but that is not it: in [MLP], with the state on the chip of 64 and 128 IPUs
([scaling](scaling.md)), an update lacks 0.13 to 0.16 s where micro-batches are 8% too fast, and
question answering, with its state on the chip and 2 updates a call (PyTorch) or 4 (PopART), lacks
0.15 and 0.13 s a call. It is in the call itself: an evaluation in [MLP]'s logs is four calls of the
same program, between which no learning rate is sent, and takes as long as four updates (8.21 and
8.04 s on 16 IPUs, 2.53 and 2.52 s on 64); a call's inputs are 14 MB there. A host between the
calls, while the IPUs wait, would look like this. No public source gives its time, so that none is
counted: BERT's throughput is too high by as much.

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

**Dense products on Bow** ([PSP], measured, read from a plot to about 3%). Operands are on the
chip. The rows in fp16 say that they were measured with half partials: the program that measured
them has an option for it, and the fastest exceed what 8 of 16 units could multiply, which is all
that float partials leave. Nothing is fitted to this group. As long as a vertex took what the
vendor's planner estimates, fp32 was 5% too fast and fp16 with 16 columns 13% too slow: it takes
what its code does ([cycles](cycles.md#estimated-and-executed)).
8192 x 128 in fp32 is slower on hardware than its neighbours on both sides, but not here.

**Convolutions on GC2** ([JIA], measured in 2019 on early software; [LBM], cycles). The formulas are
those of later software and the best split of its planner. Predictions are 15-25% too fast in the
middle and up to 1.4 times too fast at the largest batches, where the measured throughput falls
again (Conv2_3: 73 at batch 32, 66 at 128) and ours does not. Nothing is fitted to this group. The
fp32 convolution of [LBM] is predicted 18% too fast (its ratio is of cycles: below 1 means fewer).

**Whole models** ([MLP], [GCP]) in their published configuration: replicas, accumulation,
micro-batch, stages, memory proportion and optimiser are read from the row. What the row leaves open
comes from Graphcore's public configurations [EX]: ResNet-50 keeps the outputs of ten residual
blocks and recomputes the rest except what follows the last of them, with a memory proportion of
0.12 and half partials (applications/pytorch/cnns/train/configs.yml); its images arrive as 8-bit
integers and are normalised on the IPU, and no tiles are set aside to overlap that with computing
(applications/tensorflow/cnns/training/configs.yml, mk2_resnet50_mlperf_pod16_lars); BERT keeps the
output of each encoder layer. GELU is PopTorch's ([cycles](cycles.md#elementwise)): with poplibs'
vertex of the exact one, which was counted until PopTorch's source was read, training of BERT was
predicted 1.02 to 1.15 times too fast and ViT's 1.36 times; what makes up for it now is not found.
It is none of these, which are left out here: operands that PopART copies into its outlined
functions, and results out of them ([POPART, willow/src/popx/op/callx.cpp], about 2% of BERT-Base's
micro-batch at 8 bytes a cycle), and the seeds of workers that poprand keeps, sets and puts back
around each dropout ([PL, lib/poprand/RandomGen.cpp], maybeSaveHwSeedsAndSetSeeds, about 0.6%).
The tied embedding and head are stages 0 and 4, both on IPU 0.

## Rows found elsewhere

`benchmarks/fidelity/poplibs.csv` is a source registered whole by `python -m
benchmarks.fidelity.poplibs CHECKOUT`: every line of poplibs' benchmark file ([PLB], its last state,
of March 2021), with cycles of Poplar's own IPUModel for GC2 and MK2, the bytes of its liveness
report and the fullest tile with gaps. The tools of products, convolutions and embeddings have the
vendor's model compile vertices, whose code is then in the report; the others' has none. `c600.csv`
has every result of PopRT's benchmarks and of ByteMLPerf's reports for an IPU; `more.csv` has whole
models. No constant was fitted to these rows, but they are not a blind test, except as said here:

| rows | at first sight | what changed then, and from where |
| --- | --- | --- |
| ResNet-50 inference, C600 | 0.97-1.09 | vertices take what their code does, and a bias what \
popops does with it: 1.01-1.08; in fp32 1.13-1.17 became 1.05-1.08 |
| BERT inference, C600 | 0.84-0.86 | 128-bit loads of weights, an option of the script: 0.85-0.87; \
GELU as PopTorch makes it: 0.94-1.02; GELU and norms in fp32 at batch 128, as in the script: 0.88 |
| CTC loss and its gradient | 22-46 times too slow | in parts as in [PL, CTCLossPlan.cpp] |
| the same in parts | 0.59-0.88 (cycles) | stages as in [PL, popops/reduction/ReductionPlan.cpp] |
| all passes of GRU | 0.61 (cycles) | weights at each step, as in [PL, Gru.cpp] |
| all passes of LSTM | 0.75 (cycles) | both gradients at once, as in [PL, Lstm.cpp] |

Choices made in view of rows: to count a worker's instructions, because [PSP]'s and [POPRT]'s rows
in fp32 were too fast; the counts know no row. Where two readings of a source were possible (whether
the exchange of partials counts the one that is there already) the one that more sources agree with
was taken; where poplibs changed between a row's software and its last public state, the last state
is followed and the row is marked, or named below. Not marked are rows of [PLB] whose plan has
serial steps (eight products and four convolutions of GC2, up to 0.40 too fast): poplin exchanged
their operands again at each step until bc12b59a of July 2021, which also changed how it estimates
them. What starts a program counts: the vendor's model has the host's sync
([machine](machine.md#sync), 600 cycles) at the start of each program that a tool of poplibs or the
tutorial runs. That was seen in reductions, which lacked 500 to 570 cycles, and in poolings, which
are two programs and lacked 1,000 to 1,300; layers came closer by it, products did not. CTC's
planner counted a gradient's copy once in the software of its rows and twice since, which on GC2
leaves another split (0.72, the worst of its rows). What putting an operand in order takes was the
planner's coarse 5/4 cycles an element until poplibs' regression (addTransformCycleEstimate, 2023)
was found in view of the layers that were too fast; of 330 rows 212 came closer and 64 went away.
The copies of an IPU in the published pipeline are read until those of the IPUs before and behind it
are done: alone, two of the four would be 0.36 and 0.53 of what is drawn. What plans of layers
lacked (a weight's gradient as the transposed input times the gradient, padding and the pass counted
by the planner, dot products, half partials of what is added up at once, one plan of all passes) was
found by comparing them with those of poplibs' planner, not with measurements.

"""

MORE = """**Poplibs' benchmarks**: products are C += A B; layers and convolutions are a forward
pass, both gradients and the update of the weights, in this order; pooling is forward and backward,
recurrent layers a forward pass or all. Solvers of triangular systems and Cholesky factors have no
operator here, nor in PopTorch. What differs most: depthwise convolutions with a stride; layers of
1,000 features in fp16; first layers of few channels; GC2's largest products, which exchange their
inputs again at each serial step in the software of then and once in that of 2023, which we follow.
MK2's fullest tile is mostly the 212,992 bytes
below region 1.

**Whole models** ([GCP]: pre-release SDK 2.5, and SDK 3.1 and 3.3 for BERT-Base). The configurations
come from [EX]: nlp/bert/pytorch/configs_pretraining.yml, vision/vit/pytorch/configs.yml,
vision/cnns/pytorch/train/configs.yml. Some results were published for PopART or TensorFlow and
stand beside PyTorch's configuration of the same model; ViT's 512 accumulations are derived from its
global batch. EfficientNet-B4 (groups of 16 channels, expansion 4, group norm) and ResNeXt-101 ran
in TensorFlow 1: pipelines, micro-batches and proportions are those of
applications/tensorflow/cnns/training/configs.yml of May 2022, whose global batches are the
published ones; ResNeXt is cut at the residual block next to the operator named there. They were
registered when all rules stood, and none was chosen in view of them. ResNet-50 on 256 IPUs lacks
what [scaling](scaling.md) says of more than one rack. ViT is that of vision/vit/pytorch, with its
dropouts and checkpoints and LAMB's state in fp32, not sharded (benchmarks.yml), but for mixup; it
is predicted 1.45 to 1.6 times too fast: its slowest IPU lacks 2.3 of 7.6 million cycles a
micro-batch. That is not the dropout of its attention, nor its micro-batch or type of images: the
fine-tuning has none, 17 images and 16 bits, and is as much too fast. All four results are of
ImageNet, and for each group of 16 IPUs 6,970 to 7,800 images/s whatever is trained: the
rate of a host that decodes and augments would look like this (the program does both in Python's
image library, [EX, vision/vit/pytorch/dataset/preprocess.py]; ResNet-50's 37,061 on the same
machine come from a faster decoder), but no source says a host's rate, so that none is modelled.
Its 197 tokens are no whole groups of channels: the last group is copied with its padding, and
transposed operands piece by piece, but not results; PopRT pads them
(attention_padding). Its script for ViT leaves the type of partials open: with half partials, which
were chosen in view of these two rows (they are marked), ViT is 4 and 7% too fast and fits; with
float ones, poplibs' default, 0.70. PopRT's scripts ask for its own GELU by erf, of which nothing is
public but the name; with poplibs' vertex of that BERT-Base would be 0.87 at batch 16.

`gcp.csv` has all other rows of [GCP] that can be read, committed before any was compiled: what
stands under *All rows found elsewhere* for BERT, ResNet-50 and EfficientNet of SDK 3.0 to 3.3 is a
blind test of training. PopART's and TensorFlow's are compiled as PyTorch's program, with the sizes
of their own public configurations (tags v2.5.0 to v3.3.0 of [EX]); a pack counts as the sequences
that PyTorch's configuration says, 1.17 or 2. Attention has no dropout in BERT's pretraining
(attention_probs_dropout_prob 0): until these rows came the older ones of BERT were compiled with
it, and up to 1% slower. BERT-Large in packs of 128 does
6,044 sequences/s in PopART and 5,592 in PyTorch on 16 IPUs, 22,759 and 18,494 on 64, by much the
same configuration: 8 and 23% apart, on 64 IPUs predicted 4%. The rest is not explained; how the
two programs run it, and their hosts, differ.

**Scaling** of ResNet-50 and BERT-Large from 16 to 256 IPUs, against the logs of [MLP], is a page of
its own: [Scaling over replicas](scaling.md).

**Stages of a pipeline** ([EX], tutorials/pytorch/pipelining): the figure of a profile that was
taken on hardware, of the network of examples/mnist_pipeline.py. A backward is with the forward that
is run again. The machine is not named: an MK2, as all tutorials of that year.

## What no row here can tell

No published row covers softmax, normalisation or the optimisers on their own: they rest on
their cycle formulas and on the whole models. Exchange between IPUs is measured by the whole models
and by the pipeline's copies only. Of the components of a step, forward and backward are scored for
each stage and copies for each IPU, the weight update and the host only within a whole update: the
host's rate was taken from the one that is published with its parts, whose row is marked.

## All rows
"""
