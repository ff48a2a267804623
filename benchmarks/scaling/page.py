"""The page docs/scaling.md, and the chart of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ipuscope.profiler.analysis.critical_path import CAUSES

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from benchmarks.scaling.__main__ import Result

COLLECTIVE = "collective over replicas"  # a cause of the critical path, and here taken apart:
WITHIN, BETWEEN = "collectives within a rack", "collectives between racks"
SHOWN = tuple(
    part for cause in CAUSES for part in ((WITHIN, BETWEEN) if cause == COLLECTIVE else (cause,))
)

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"

INTRODUCTION = """# Scaling over replicas

<!-- Written by `python -m benchmarks.scaling`: edit benchmarks/scaling/page.py instead. -->

How throughput grows with the pod, predicted and published ([MLP], the logs of Graphcore's v1.1
submission, and [GCP]; `benchmarks/scaling/cases.py` says how a throughput is read from them).
Nothing is fitted to these rows. **Efficiency** is throughput an IPU over that of the model's first
row. Where the time goes is the critical path of one weight update (`ipu-report why`), in per cent
of it; what takes less than a tenth of a per cent everywhere is left out. A row marked * does not
fit its tiles by our account of memory: its cycles are known all the same.
"""

PODS = """
## Pods, as they were submitted

The configurations are those of the submission ([MLP],
Graphcore/benchmarks/resnet/implementations/tensorflow/configs.yml and
Graphcore/benchmarks/bert/implementations/popart/configs/mk2): accumulation falls as the pod grows,
so that an update has less work to hide its all-reduce behind. ResNet-50's batch norms take their
statistics over two replicas, as there. BERT's attentions and feed-forward networks are placed one
by one, its head's product is in four parts, its attention has no dropout, no second head says if a
sentence follows the other, and the norm of all gradients is limited. A pipeline of 4 IPUs for
ResNet-50 is a public configuration of which no throughput was found.

BERT-Large on Bow is Graphcore's own table ([GCP], PyTorch, SDK 3.2 and 3.3) in its public
configuration ([EX, nlp/bert/pytorch/configs_pretraining.yml]); its throughputs are divided by the
sequences to a pack that the configuration says. Packs of three are compiled, as the configurations
have it: a mask for each pair of tokens, two more masked tokens, and a loss for each sequence's
successor. That takes 0.2 to 0.7 % here, where the published table loses 8 % to packs of 128 tokens
(5,179 sequences/s without, of an earlier release); and a published Pod of 64 loses 17 % an IPU over
one of 16, PopART's 6 % in much the same configuration. An update takes a quarter of the time on the
larger one, so that what it takes besides its micro-batches weighs four times as much, and of that
0.2 s and more is missing here ([fidelity](fidelity.md#what-one-more-micro-batch-takes)).

A ring over replicas takes as long as its slowest link lets it, so that links on a board and between
boards are not told apart; the levels within a rack and between racks are.

Beyond one rack the submission lost more than is predicted: 4.1 ms of an update of ResNet-50 on 128
IPUs, 6.8 ms on 256 (samples of an update over both throughputs). One ring over all replicas would
explain most of it: 2 x 127/128 of 51 MB of gradients over each border between racks take 4.1 ms at
the 25 GB/s of a box's gateway. poplibs' collectives knew only rings until they moved to GCL in
January 2021 ([PL, include/popops/Collectives.hpp], method), and whether GCL's are hierarchical
between racks is not public, nor is a gateway's latency. So the hierarchical one stays, and the
three rows beyond a rack are too fast by what they lost there.

"""

SWEEP = """
## Replicas 1 to 256, the rest alike

Each replica does the same work, so the global batch grows: what an update loses is what the
replicas exchange. BERT-Large gains, as its optimiser state is sharded: each of more replicas brings
less of it from streaming memory. `python -m benchmarks.scaling --html scaling.html` draws it.

"""


def whole(published: Sequence[Result], swept: Sequence[Result]) -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION, PODS, table(published), SWEEP, table(swept)]
    return "".join(parts)


def line(result: Result) -> str:
    """One result in a line, for progress messages."""
    return f"{result.model}, {result.system.pod}: {result.throughput:,.0f} samples/s"


def table(results: Sequence[Result]) -> str:
    """A Markdown table with a row for each result."""
    shown = [cause for cause in SHOWN if any(_share(r, cause) >= 0.001 for r in results)]
    has_published = any(r.system.published for r in results)
    heads = ["model", "pod" if has_published else "replicas", "IPUs", "samples/s"]
    heads += ["published", "predicted / published"] * has_published + ["efficiency"]
    heads += ["published"] * has_published + [f"{cause} %" for cause in shown]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * (len(heads) - 2)]
    for _, group in groupby(results, key=lambda r: r.model):
        rows = list(group)
        for result in rows:
            cells = _cells(result, rows[0], has_published)
            cells += [f"{_share(result, cause):.1%}".rstrip("%") for cause in shown]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cells(result: Result, first: Result, has_published: bool) -> list[str]:
    system, start = result.system, first.system
    marked = result.model + (" *" if result.note else "")
    cells = [marked, system.pod, str(system.ipus), f"{result.throughput:,.0f}"]
    known = system.published
    if has_published:
        cells += [f"{known:,.0f}", f"{result.throughput / known:.2f}"] if known else ["", ""]
    ratio = system.ipus / start.ipus
    cells.append(f"{result.throughput / first.throughput / ratio:.1%}")
    if has_published:
        cells.append(f"{known / start.published / ratio:.1%}" if known and start.published else "")
    return cells


def _share(result: Result, cause: str) -> float:
    return result.causes.get(cause, 0) / max(1, sum(result.causes.values()))


def chart(swept: Sequence[Result]) -> go.Figure:
    """Chart efficiency over replicas, a line per model, with the causes of waiting below."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    models = [(model, list(group)) for model, group in groupby(swept, key=lambda r: r.model)]
    titles = ["Throughput an IPU, of one replica's", *(f"{model}: update" for model, _ in models)]
    figure = make_subplots(rows=1 + len(models), cols=1, subplot_titles=titles)
    for model, rows in models:
        replicas = [int(r.system.pod) for r in rows]
        first = rows[0].throughput
        each = [r.throughput / first / n for r, n in zip(rows, replicas, strict=True)]
        figure.add_trace(go.Scatter(x=replicas, y=each, name=model, mode="lines+markers"), 1, 1)
    for place, (_, rows) in enumerate(models, 2):
        for cause in (c for c in SHOWN if any(_share(r, c) >= 0.001 for r in rows)):
            bars = go.Bar(
                x=[r.system.pod for r in rows],
                y=[_share(r, cause) for r in rows],
                name=cause,
                legendgroup=cause,
                showlegend=place == 2,
            )
            figure.add_trace(bars, place, 1)
    figure.update_xaxes(type="log", dtick="D2", title="replicas", row=1, col=1)
    figure.update_yaxes(tickformat=".0%")
    figure.update_layout(barmode="stack", height=380 * (1 + len(models)), template="plotly_white")
    return figure
