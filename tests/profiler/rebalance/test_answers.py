"""What else the rebalancer answers, each against brute force or a closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ipu_exec
from benchmarks.rebalance.random_costs import random_costs
from ipu_exec import PipelinedExecution, Stage, topology
from profiler import Report, open_report, schedules
from profiler.rebalance import Assignment, Costs, best_split, what_if
from profiler.rebalance.accumulation import least_accumulation
from profiler.rebalance.block_splitting import best_block_cut, split_block
from profiler.rebalance.choice import Choice
from profiler.rebalance.cuts import Cuts
from profiler.rebalance.fewest import fewest_ipus
from profiler.rebalance.interval_costs import depth_of
from profiler.rebalance.pareto import pareto
from profiler.rebalance.prices import prices
from profiler.rebalance.proof import prove
from profiler.rebalance.robust import least_regret, scenario
from profiler.rebalance.split import ALL_CHOICES, least_bottleneck
from profiler.rebalance.tile_memory import Part, ipu_bytes
from profiler.rebalance.waiting_causes import CAUSES, waiting_causes
from profiler.rebalance.what_if import stage_cycles
from reports.cli import main as ipu_report
from tests.models import LayersInBlocks, TiedWords
from tests.profiler.rebalance.test_split import brute_force, splits
from tests.profiler.rebalance.test_what_if import profiled as trained
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The example's network on two IPUs: B1 and B2, B3 and B4."""
    return trained(tmp_path_factory.mktemp("two"), (0, 2))


def random_case(random: np.random.Generator, stages: int, most: int = 8, **more: object) -> Costs:
    count = int(random.integers(stages, most))
    full = float(random.uniform(0.8, 1.6))
    return random_costs(random, count, 4, stages=stages, full=full, **more)  # type: ignore[arg-type]


def test_fewer_ipus_than_the_fewest_do_not_fit() -> None:
    random = np.random.default_rng(0)
    found = set()
    for _ in range(60):
        costs = random_case(random, 4, micro_batches=40)
        try:
            split = fewest_ipus(costs)
        except ValueError:
            assert all(
                brute_force(costs, range(k), (Choice.profiled(costs),)) is None
                for k in range(1, len(costs))
            )
            continue
        stages = len(split.prediction.assignment.starts)
        found.add(stages)
        assert brute_force(costs, range(stages), (Choice.profiled(costs),)) is not None
        for fewer in range(1, stages):
            assert brute_force(costs, range(fewer), (Choice.profiled(costs),)) is None
    assert len(found) > 1


@pytest.mark.parametrize("choices", [(), ALL_CHOICES])
def test_the_front_is_brute_forces(choices: tuple[Choice, ...]) -> None:
    random = np.random.default_rng(1)
    lengths = []
    for _ in range(25):
        stages = int(random.integers(1, 4))
        costs = random_case(random, stages, most=6)
        points = set()
        for spans in splits(len(costs), stages):
            ways = [[]]  # type: ignore[var-annotated]
            for k, (a, b) in enumerate(spans):
                parts = [
                    Part(a, b, depth_of(costs, stages, k), choice)
                    for choice in choices or (Choice.profiled(costs),)
                ]
                ways = [[*way, part] for way in ways for part in parts]
            for way in ways:
                cycles = max(
                    sum(stage_cycles(costs, part, k == stages - 1)) for k, part in enumerate(way)
                )
                points.add((cycles, max(int(ipu_bytes(costs, [part]).max()) for part in way)))
        wanted = sorted(
            p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)
        )
        found = pareto(costs, stages, choices)
        assert [(point.bottleneck, point.fullest) for point in found] == wanted
        lengths.append(len(wanted))
        for point in found:
            prediction = what_if(costs, point.assignment)
            assert (prediction.bottleneck, max(prediction.fullest)) == (
                point.bottleneck,
                point.fullest,
            )
    assert max(lengths) > 1


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_accumulation_is_the_least_with_so_small_ramps(share: float) -> None:
    random = np.random.default_rng(2)
    for _ in range(15):
        stages = int(random.integers(1, 5))
        costs = random_costs(random, stages + 2, 4, stages=stages)
        assignment = best_split(costs, stages).prediction.assignment
        found = least_accumulation(costs, assignment, share)

        def lost(batches: int, costs: Costs = costs, assignment: Assignment = assignment, cycle: int = found.cycle) -> float:  # fmt: skip  # noqa: E501
            total = what_if(replace(costs, micro_batches=batches), assignment).total
            return 1 - batches * cycle / total

        assert lost(found.micro_batches) <= share + 1e-9
        if found.micro_batches > 2 * stages - 1:
            assert lost(found.micro_batches - 1) > share


def test_accumulation_of_a_balanced_pipeline_is_the_closed_form() -> None:
    """A time bubble of at most 5 % needs G >= 19 (K - 1) (docs/pipeline-schedules.md#bubbles)."""
    costs, none = random_costs(np.random.default_rng(3), 4, 4, recompute=False), np.zeros(4, int)
    even = replace(
        costs,
        cycles=replace(
            costs.cycles, forward=np.full(4, 100), backward=np.full(4, 200), update=none
        ),
        machine=replace(costs.machine, sync=0, link_latency=0),
        cuts=Cuts(none, none),
        stash=replace(costs.stash, base=0.0, rate=0.0),
        streams=replace(costs.streams, stream_in=none, stream_out=none),
        samples=8,
        micro_batches=15,
    )
    found = least_accumulation(even, Assignment((0, 1, 2, 3), (0, 1, 2, 3)), 0.05)
    assert found.micro_batches == 19 * 3
    # Of 8 x 15 samples, 57 micro-batches or more: 2 samples each are 60.
    assert (found.micro_batch, found.of_batch) == (2, 60)
    with pytest.raises(ValueError, match="between 0 and 1"):
        least_accumulation(even, Assignment((0,), (0,)), 0.0)


def test_copies_between_boards_are_as_slow_as_their_links() -> None:
    """Six stages, two IPUs a board: by hand, and as the engine's own copies (ipu_exec.machine)."""
    costs = random_costs(np.random.default_rng(4), 6, 4, stages=6)
    costs = replace(
        costs,
        cuts=Cuts(np.full(6, 4_100), np.full(6, 8_200)),
        machine=replace(
            costs.machine,
            link_latency=931,
            link_bytes_per_cycle=41.0,
            board_link_bytes_per_cycle=20.5,
            ipus_per_board=2,
            ipus_per_rack=64,
            rack_link_bytes_per_cycle=4.1,
            gateway_latency=1_000,
        ),
    )
    target = replace(
        ipu_exec.machine.target("mk2"),
        ipus_per_board=2,
        link_bytes_per_second=41.0 * 1.33e9,
        board_link_bytes_per_second=20.5 * 1.33e9,
        gateway_bytes_per_second=4.1 * 1.33e9,
        gateway_latency_seconds=1_000 / 1.33e9,
    )
    for a, b in ((0, 1), (1, 2), (3, 9), (0, 15), (60, 70)):
        assert costs.machine.link_rate(a, b) == pytest.approx(topology.link_rate(target, a, b))
        assert costs.machine.hop_latency(a, b) == round(topology.latency_cycles(target, a, b))
    made = what_if(costs, Assignment(tuple(range(6)), tuple(range(6)))).schedule
    copies = {ipu: set() for ipu in range(6)}
    for ipu, kind, start, end in zip(made.ipu, made.kind, made.start, made.end, strict=True):
        if kind == schedules.COPY:
            copies[int(ipu)].add(int(end - start))
    # At the ends 8,200 bytes come over a board's link; between, 400 cycles of a slow link and 100
    # of a fast one.
    assert [copies[k] for k in range(6)] == [{1131}, {1431}, {1431}, {1431}, {1431}, {1131}]


def test_the_least_regret_is_brute_forces() -> None:
    """Over all corners of the box: every Block up or down.

    Without recomputation, where it is exact.
    """
    random = np.random.default_rng(4)
    better = 0
    for _ in range(12):
        stages = int(random.integers(2, 4))
        costs = random_costs(random, 5, 4, stages=stages, full=1.3, recompute=False, most=3_000)
        none = np.zeros_like(costs.cycles.backward)
        costs = replace(costs, cycles=replace(costs.cycles, backward=none))
        choices = (Choice.profiled(costs),)
        if brute_force(costs, range(stages), choices) is None:
            continue
        corners = [
            scenario(costs, [b for b in range(5) if corner >> b & 1], 0.2) for corner in range(32)
        ]
        optima = [least_bottleneck(case, stages, choices) for case in corners]
        regrets = {}
        for spans in splits(5, stages):
            assignment = Assignment(tuple(a for a, _ in spans), tuple(range(stages)))
            if max(what_if(costs, assignment).fullest) > costs.machine.bytes_per_tile:
                continue
            regrets[assignment.starts] = max(
                what_if(case, assignment).bottleneck - best
                for case, best in zip(corners, optima, strict=True)
            )
        found = least_regret(costs, stages, 0.2)
        assert found.regret == min(regrets.values()) == regrets[found.assignment.starts]
        assert found.regret <= found.regret_of_best
        better += found.regret < found.regret_of_best
        assert found.worst == what_if(corners[-1], found.assignment).bottleneck
    assert better > 0
    assert least_regret(costs, 2, 0.0).regret == 0


def test_a_proof_names_a_block_that_overflows_with_a_cycle_less() -> None:
    random = np.random.default_rng(5)
    for _ in range(80):
        stages = int(random.integers(1, 5))
        costs = random_case(random, stages)
        choices = (Choice.profiled(costs),)
        try:
            split = best_split(costs, stages)
        except ValueError:
            continue
        least = split.least_bottleneck
        proof = prove(costs, stages, least, split.lower_bound, choices)
        assert (
            max(proof.largest_block, proof.even_share)
            <= proof.endless_memory
            <= proof.least
            == least
        )
        # Brute force: with a cycle less, stages 0 .. proof.stage end at `reached` at the furthest.
        furthest = -1
        for size in range(1, len(costs) + 1):
            if proof.stage + 1 > size:
                continue
            for spans in splits(size, proof.stage + 1):
                parts = [
                    Part(a, b, depth_of(costs, stages, k), choices[0])
                    for k, (a, b) in enumerate(spans)
                ]
                short = all(
                    sum(stage_cycles(costs, p, k == stages - 1)) < least
                    for k, p in enumerate(parts)
                )
                if short and all(
                    ipu_bytes(costs, [p]).max() <= costs.machine.bytes_per_tile for p in parts
                ):
                    furthest = max(furthest, size - 1)
        if furthest >= 0:
            assert furthest == proof.reached < len(costs) - 1
        assert costs.names[proof.stuck] in " ".join(proof.sentences(costs.names))
        with pytest.raises(ValueError, match="fits"):
            prove(costs, stages, least + 1, split.lower_bound, choices)


def test_prices_are_what_brute_force_gains() -> None:
    random = np.random.default_rng(6)
    worth = 0
    for _ in range(40):
        stages = int(random.integers(1, 4))
        costs = random_case(random, stages, most=7)
        choices = (Choice.profiled(costs),)
        now = brute_force(costs, range(stages), choices)
        if now is None:
            continue
        found = {price.what: price for price in prices(costs, stages, extra=2_048)}
        assert all(price.now == now for price in found.values())
        roomier = costs.with_tile_bytes(costs.machine.bytes_per_tile + 2_048)
        assert found["2 KiB more a tile everywhere"].then == brute_force(
            roomier, range(stages), choices
        )
        for k in range(stages):
            best = None
            for spans in splits(len(costs), stages):
                parts = [
                    Part(a, b, depth_of(costs, stages, j), choices[0])
                    for j, (a, b) in enumerate(spans)
                ]
                limits = [costs.machine.bytes_per_tile + 2_048 * (j == k) for j in range(stages)]
                if all(
                    ipu_bytes(costs, [p]).max() <= limit
                    for p, limit in zip(parts, limits, strict=True)
                ):
                    load = max(
                        sum(stage_cycles(costs, p, j == stages - 1)) for j, p in enumerate(parts)
                    )
                    best = load if best is None else min(best, load)
            assert found[f"2 KiB more a tile on stage {k}"].then == best
            worth += best is not None and best < now
        more = brute_force(costs, range(stages + 1), choices) if stages < len(costs) else None
        assert (found["one more IPU"].then if "one more IPU" in found else None) == more
    assert worth > 0


# -- from profiles ---


@pytest.mark.parametrize("seed", [0, 1])
def test_blame_adds_up_to_all_waiting(tmp_path: Path, seed: int) -> None:
    report = open_report(synthetic_profile(tmp_path / "profile.pop", seed=seed))
    table = waiting_causes(report)
    tasks = report.tasks(0, iteration=0)
    assert table["total"].sum() == pytest.approx(
        tasks.loc[tasks["kind"] == "idle", "cycles"].sum(), abs=40
    )
    assert table["total"].idxmax() == 2  # the synthetic profile's slow stage
    assert (table[list(CAUSES)].sum(axis=1) == table["total"]).all()
    assert (
        table.loc[2, "compute"] > 0
        and table.loc[2, "exchange"] > 0
        and table.loc[2, "tile imbalance"] > 0
    )
    assert table["host"].sum() > 0


def test_blame_of_a_worked_pipeline_is_by_hand(two: Report) -> None:
    table = waiting_causes(two)
    tasks = two.tasks(0, iteration=0)
    waits = tasks[tasks["kind"] == "idle"]
    assert table["total"].sum() == pytest.approx(waits["cycles"].sum(), abs=20)
    # Two IPUs: while one waits the other works, so that whom it waits for is no question.
    for stage in (0, 1):
        assert table.loc[stage, "total"] == pytest.approx(
            waits.loc[waits["ipu"] == 1 - stage, "cycles"].sum(), abs=10
        )
    assert table.loc[0, "recompute"] > 0
    assert table.loc[1, "recompute"] == 0  # the last stage does not recompute


def test_a_cut_inside_a_block_is_what_blocks_of_their_own_give(tmp_path: Path, two: Report) -> None:
    """Two Blocks taken for one and cut in two again cost what they did."""
    costs = Costs.from_report(two)
    halves = split_block(two, costs, 1, 1)
    assert halves.names == ("B1", "B2.1", "B2.2", "B3", "B4")
    for name in ("forward", "backward", "update"):
        assert getattr(halves.cycles, name).sum() == getattr(costs.cycles, name).sum()
    for name in ("always", "state", "saved"):
        np.testing.assert_array_equal(
            getattr(halves.memory, name).sum(axis=0), getattr(costs.memory, name).sum(axis=0)
        )
    runs, ran = (
        halves.memory.code_users[:, 1] | halves.memory.code_users[:, 2],
        costs.memory.code_users[:, 1],
    )
    np.testing.assert_array_equal(
        halves.memory.code[runs].sum(axis=0), costs.memory.code[ran].sum(axis=0)
    )
    assert (halves.memory.code_users[:, 1] & ~halves.memory.code_users[:, 2]).any()
    whole = what_if(costs, Assignment((0, 2), (0, 1)))
    again = what_if(halves, Assignment((0, 3), (0, 1)))
    assert again.total == pytest.approx(whole.total, rel=1e-3)


def deep(folder: Path, sizes: dict[str, int], stages: list[tuple[str, ...]]) -> Report:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder).showCompilationProgressBar(
        False
    )
    options.Training.gradientAccumulation(16)
    options.setExecutionStrategy(
        PipelinedExecution(*(Stage(*names).ipu(k) for k, names in enumerate(stages)))
    )
    model = LayersInBlocks(sizes)
    training = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    training(torch.randn(16 * 16, 256), torch.randint(256, (16 * 16,)))
    return open_report(folder)


def test_the_longest_block_is_cut_where_a_second_compile_gains(tmp_path: Path) -> None:
    before = deep(tmp_path / "before", {"big": 6, "small": 1}, [("big",), ("small",)])
    costs = Costs.from_report(before)
    found = best_block_cut(before, costs, 2)
    assert found is not None
    assert costs.names[found.block] == "big"
    assert found.split.prediction.total < best_split(costs, 2).prediction.total
    assert found.bytes_over == 16 * 256 * 4
    assert found.split.prediction.assignment.starts == (0, 1)
    # The cut falls between layers: the model with its Block cut there gives what was predicted.
    first = int(found.before.removeprefix("layers.").removesuffix("/addmm"))
    assert 0 < first < 6
    sizes = {"big.1": first, "big.2": 6 - first, "small": 1}
    after = deep(tmp_path / "after", sizes, [("big.1",), ("big.2", "small")])
    obtained = int(after.runs["cycles"].iloc[0] // after.runs["iterations"].iloc[0])
    assert found.split.prediction.total == pytest.approx(obtained, rel=0.05)


EQUAL = {f"B{k}": 1 for k in range(8)}
SPLITS = ((0,), (0, 3), (0, 1, 3, 5), tuple(range(8)))


@pytest.fixture(scope="module")
def equal_layers(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """The same model in each of the splits."""
    names = list(EQUAL)
    return [
        deep(
            tmp_path_factory.mktemp("equal"),
            EQUAL,
            [tuple(names[a:b]) for a, b in zip(starts, (*starts[1:], 8), strict=True)],
        )
        for starts in SPLITS
    ]


def of_blocks_alone(costs: Costs) -> Costs:
    """Without gaps, and without what the profile's own IPUs are known to hold besides."""
    memory = replace(costs.memory, residual=np.zeros((0, 0), dtype=np.int64))
    return replace(costs, memory=memory, machine=replace(costs.machine, region0_bytes=0))


@pytest.mark.parametrize("profiled", range(len(SPLITS)))
def test_code_that_equal_blocks_share_is_counted_once_an_ipu(
    equal_layers: list[Report], profiled: int
) -> None:
    """From any split to any other, to more stages and to fewer.

    Memory is what the other's own profile has. Without gaps: in a model as small as this one they
    hide it.
    """
    costs = of_blocks_alone(Costs.from_report(equal_layers[profiled]))
    assert (costs.memory.code_users.sum(axis=1) >= 6).any()
    for starts, report in zip(SPLITS, equal_layers, strict=True):
        split = Assignment(starts, tuple(range(len(starts))))
        own = of_blocks_alone(Costs.from_report(report))
        assert what_if(costs, split).fullest == pytest.approx(
            what_if(own, split).fullest, rel=0.025
        )


def test_what_a_stranger_says_of_code_is_checked(equal_layers: list[Report]) -> None:
    report = equal_layers[1]
    header = report.meta
    said = header["code"]
    assert len(said["calls"]) == 8 and said["shared"]
    first = said["shared"][0]
    strange = (
        [],
        7,
        {},
        {**said, "calls": [1]},
        {**said, "calls": [-1] * 8},
        {**said, "calls": [1 << 40] * 8},
        {**said, "shared": [[[99], *first[1:]]]},
        {**said, "shared": [[first[0], [1 << 70], []]]},
        {**said, "shared": [first, first]},
        {**said, "shared": [[first[0], first[1]]]},
    )
    for wrong in strange:
        report.__dict__["meta"] = {**header, "code": wrong}
        costs = Costs.from_report(report)
        assert what_if(costs, Assignment((0, 3), (0, 1))).fullest[0] > 0
        assert costs.memory.always.min() >= 0 and costs.memory.shared.min() >= 0
    report.__dict__["meta"] = header


def tied(folder: Path, words: int = 64, head: int = 1) -> Report:
    model = TiedWords(words, 32, (0, 1, 1, head))
    options = ipu_exec.Options(
        autoreport=True, autoreport_dir=str(folder)
    ).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    names = (
        [("words",), ("layer0", "layer1", "head")]
        if head
        else [("words",), ("layer0", "layer1"), ("head",)]
    )
    stages = [Stage(*mine).ipu(k % 2) for k, mine in enumerate(names)]
    options.setExecutionStrategy(PipelinedExecution(*stages))
    executor = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(*(torch.randint(0, words, (8 * 4, 8)) for _ in range(2)))
    return open_report(folder / "training")


def test_a_tied_weight_travels_only_to_another_ipu(tmp_path: Path) -> None:
    apart, home = tied(tmp_path / "apart", 4096, 1), tied(tmp_path / "home", 4096, 0)
    splits = Assignment((0, 1), (0, 1)), Assignment((0, 1, 3), (0, 1, 0))
    for profiled in (apart, home):
        costs = Costs.from_report(profiled)
        assert costs.cuts.ties.nbytes == (4096 * 32 * 4,)
        for split, obtained in zip(splits, (apart, home), strict=True):
            assert what_if(costs, split).total == pytest.approx(
                int(obtained.runs["cycles"].iloc[0]), rel=0.01
            )
        spared = costs.cuts.crossing((0, 1, 3), (0, 1, 0))
        assert [int(way[1]) for way in spared] == [
            4 * 8 * 32 * 4
        ] * 2  # the activation and its gradient


def test_a_weight_that_two_blocks_read_is_known_and_kept_together(tmp_path: Path, capsys) -> None:
    tied(tmp_path)
    costs = Costs.from_report(open_report(tmp_path / "training"))
    assert costs.names == ("words", "layer0", "layer1", "head")
    assert (costs.cuts.ties.names, costs.cuts.ties.blocks) == (("words.weight",), ((0, 3),))
    assert ipu_report(["rebalance", "--stages", "2", str(tmp_path / "training")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "words.weight is read by words, head, which would be on different IPUs" in words
    assert (
        ipu_report(
            ["rebalance", "--stage-ipus", "0,1,0", "--together", "tied", str(tmp_path / "training")]
        )
        == 0
    )
    words = " ".join(capsys.readouterr().out.split())
    assert "different IPUs" not in words
    split = best_split(costs, ipus=(0, 1, 0), together=[[0, 3]])
    ipus = [split.prediction.assignment.ipus[k] for k in split.prediction.assignment.stage_of(4)]
    assert ipus[0] == ipus[3] == 0


def test_together_tied_needs_a_shared_weight(tmp_path: Path, capsys) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    assert ipu_report(["rebalance", "--together", "tied", str(path)]) != 0
    assert "no weight is read by more than one Block" in capsys.readouterr().err
