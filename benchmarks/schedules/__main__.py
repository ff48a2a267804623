"""Bubble rates of pipeline schedules beside those that their papers print: a table for a page.

``python -m benchmarks.schedules`` writes the rows of docs/pipeline-schedules.md: the settings and
profiled times of [ZB, table 9], its bubble rates (table 5), and those of our lists of actions with
the same times (`simulation.free`, copies of the paper's T_comm).
"""

from __future__ import annotations

from ipuscope.planner.schedules.generators import KINDS
from ipuscope.planner.schedules.simulation import Work, free, span
from ipuscope.profiler.timeline.schedule_types import Costs

SCALE = 1000  # the paper's times are milliseconds with three decimals
NAMES = ("1f1b", "interleaved", "zb-h1", "zb-h2")
# model, layers, stages, micro-batches; T_F, T_B, T_W, T_comm (table 9); bubble rates (table 5)
ROWS = (
    ("1.5B", 22, 8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1055, 0.1585, 0.1083)),
    ("1.5B", 22, 8, 32, (18.513, 18.086, 9.331, 0.626), (0.1985, 0.0818, 0.1242, 0.0837)),
    ("1.5B", 22, 8, 64, (18.546, 18.097, 9.321, 0.762), (0.1240, 0.0443, 0.0674, 0.0444)),
    ("6.2B", 30, 8, 24, (29.718, 29.444, 19.927, 0.527), (0.2347, 0.0808, 0.1323, 0.0698)),
    ("6.2B", 30, 8, 32, (29.802, 29.428, 19.530, 0.577), (0.1898, 0.0628, 0.1045, 0.0559)),
    ("6.2B", 30, 8, 64, (29.935, 29.621, 19.388, 0.535), (0.1091, 0.0320, 0.0554, 0.0294)),
    ("14.6B", 46, 16, 48, (11.347, 11.248, 8.132, 0.377), (0.2552, 0.1104, 0.1397, 0.0672)),
    ("14.6B", 46, 16, 64, (11.307, 11.254, 8.101, 0.379), (0.2082, 0.0852, 0.1088, 0.0516)),
    ("14.6B", 46, 16, 128, (11.325, 11.308, 8.109, 0.378), (0.1251, 0.0445, 0.0576, 0.0266)),
    ("28.3B", 62, 32, 96, (10.419, 10.207, 7.715, 0.408), (0.2646, 0.1493, 0.1421, 0.0641)),
    ("28.3B", 62, 32, 128, (10.408, 10.204, 7.703, 0.408), (0.2168, 0.1164, 0.1106, 0.0490)),
    ("28.3B", 62, 32, 256, (10.402, 10.248, 7.698, 0.460), (0.1352, 0.0624, 0.0594, 0.0257)),
)


def bubble(name: str, layers: int, ranks: int, count: int, times: tuple[float, ...]) -> float:
    """Share of the longest rank's time beyond its work: [ZB, section 5.3]."""
    chunks = (layers + 2) // ranks if name == "interleaved" else 1  # a layer each; ends have fewer
    schedule = KINDS[name].make(ranks, count, chunks)
    forward, inputs, weights, copy = (round(one * SCALE) for one in times)
    stages = schedule.stages
    each = [round(one / chunks) for one in (forward, inputs, weights)]
    costs = Costs(schedule.ipus, (each[0],) * stages, (each[1],) * stages)
    copies = (copy,) * stages
    took = span(free(schedule, Work(costs, (each[2],) * stages, copies, copies)))
    return 1 - count * chunks * sum(each) / took


def main() -> None:
    """Print the table."""
    print("| model | p | m |" + "".join(f" `{name}` published | here |" for name in NAMES))
    print("| --- |" + " --- |" * (2 + 2 * len(NAMES)))
    for model, layers, ranks, count, times, published in ROWS:
        cells = [
            f"{theirs:.4f} | {bubble(name, layers, ranks, count, times):.4f}"
            for name, theirs in zip(NAMES, published, strict=True)
        ]
        print(f"| {model} | {ranks} | {count} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
