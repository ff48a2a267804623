"""How sure a profile is of its cycles: from published errors to what a reader is told."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import torch

import ipu_exec as poptorch
from ipu_exec.compiler.rows.profile_header import cycle_error
from ipu_exec.lowering.measured import Bar, bar, bars, shares, together
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler import ProfileError, open_report
from ipuscope.profiler import confidence as said
from ipuscope.reports.cli import main
from tests.synthetic import synthetic_profile


def _bar(low: float, high: float) -> dict[str, float]:
    return {"low": low, "high": high, "estimates": 12}


CLASSES = [
    {"class": "product", "share": 0.75, "likely": 0.12, "rows": 200, **_bar(0.89, 1.05)},
    {"class": "other", "share": 0.25, "likely": 0.4, "rows": 0, **_bar(0.71, 1.2)},
]


def test_bars_of_kinds_add_up_by_their_share_of_the_cycles() -> None:
    product, other = shares({"product": 900, "unheard of": 100, "none": 0}, "bow", "fp16")
    assert (product.name, product.share, other.share) == ("product", 0.9, 0.1)
    assert other.bar == bar("other", "bow", "fp16") and other.bar.rows == 0
    sum_of_both = together((product, other))
    assert sum_of_both.low == pytest.approx(1 / (0.9 / product.bar.low + 0.1 / other.bar.low))
    assert other.bar.low < sum_of_both.low < product.bar.low
    assert together(()) == Bar(1.0, 1.0)


def test_training_is_slower_than_predicted_more_often_than_faster() -> None:
    one = bar("training", "bow", "fp16")
    assert one.rows >= 50 and 1 / one.low > 1.2 * one.high


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in bars()}))
def test_a_bar_has_the_prediction_in_it_and_no_kind_is_without_one(kind: str) -> None:
    for target in ("mk1", "mk2", "bow", "c600", "any", "unheard of"):
        one = bar(kind, target, "fp16")
        assert 0.2 < one.low <= 1 <= one.high < 3 and one.likely > 0.03


def test_what_nobody_measured_has_a_wider_bar_than_what_it_resembles() -> None:
    for kind, like in (("grouped convolution", "convolution"), ("other", "product")):
        unmeasured, measured = bar(kind, "mk2", "fp16"), bar(like, "mk2", "fp16")
        assert unmeasured.rows == 0 < measured.rows
        assert unmeasured.high / unmeasured.low > measured.high / measured.low


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile whose header does not say how sure its cycles are."""
    return synthetic_profile(tmp_path_factory.mktemp("silent") / "profile.pop")


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and its header says it."""
    path = synthetic_profile(tmp_path_factory.mktemp("sure") / "profile.pop")
    error = {"likely": 0.19, "unmeasured": 0.25, "classes": CLASSES}
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO meta VALUES (?, ?)", ("cycle_error", json.dumps(error)))
    return path


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_profile_carries_the_error_of_each_class(sure: Path, silent: Path) -> None:
    with open_report(sure) as report:
        assert said.likely(report) == "likely within 19%"
        assert said.unmeasured(report) == 0.25
        assert said.by_class(report).to_dict("records") == CLASSES
    with open_report(silent) as report:
        assert said.likely(report) == "" and said.confidence(report) is None
        assert not len(said.by_class(report)) and said.unmeasured(report) == 0


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("cycle_error", {"unmeasured": 0}),
        ("cycle_error", {"likely": "x", "unmeasured": 0}),
        ("cycle_error", {"likely": 0, "unmeasured": 0, "low": 0}),
        ("cycle_error", {"likely": 0, "unmeasured": 0, "classes": [{"low": []}]}),
        ("cycle_error", {"likely": 0, "unmeasured": 0, "operators": 5}),
        ("cycle_error", {"likely": 0, "unmeasured": 0, "operators": [{}]}),
        ("byte_error", {"low": 1}),
    ],
)
def test_a_bar_that_is_none_is_refused(tmp_path: Path, key: str, entry: dict[str, object]) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with sqlite3.connect(path) as file:
        file.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(entry)))
    with open_report(path) as report, pytest.raises(ProfileError, match=f"header's {key}"):
        report.ops, report.meta  # noqa: B018


def test_speed_is_a_range(tmp_path: Path, sure: Path, silent: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    error = {"likely": 0.25, "low": 0.8, "high": 1.1, "unmeasured": 0.5, "models": 60}
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO meta VALUES (?, ?)", ("cycle_error", json.dumps(error)))
    with open_report(path) as report:
        known = said.confidence(report)
        assert known == said.Confidence(0.8, 1.1, 0.5, 60)
        assert known.rates(500) == pytest.approx((400, 550))
        assert known.in_words(500) == "400 to 550"
        assert known.spread == pytest.approx((1.1 / 0.8) ** 0.5 - 1, abs=1e-4)
        assert said.likely(report) == "likely 9% fewer to 25% more"
    assert said.Confidence(0.7, 1.0).words == "likely up to 43% more"
    assert said.Confidence(1.0, 1.25).words == "likely up to 20% fewer"
    assert said.Confidence(0.8, 0.9).words == "likely 11% to 25% more"
    with open_report(sure) as report:  # one that says only how far they are off at most
        known = said.confidence(report)
        assert known is not None and known.rates(119) == pytest.approx((100, 119 * 1.19))
    with open_report(silent) as report:
        assert said.confidence(report) is None


def test_bytes_near_the_limit_are_uncertain(silent: Path) -> None:
    bar = (0.9, 1.2)
    answers = [said.fits(nbytes, 1000, bar) for nbytes in (800, 900, 1000, 1050, 1200)]
    assert answers == ["fits", *["fits, uncertain"] * 2, "does not fit, uncertain", "does not fit"]
    assert said.fits(1000, 1000) == "fits" and said.fits(1001, 1000) == "does not fit"
    with open_report(silent) as report:
        assert said.byte_range(report) == (1, 1)


def test_readers_are_told_how_sure_the_cycles_are(
    sure: Path, silent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = told(capsys, "summary", sure)
    assert "likely within 19%" in words and "judged by similar ones" in words
    page = json.loads(told(capsys, "summary", "--json", sure))[0]
    assert page["cycle_error"] == CLASSES
    assert "likely within" not in told(capsys, "summary", silent)
    for command in ("whatif", "rebalance"):
        assert "Cycles on hardware are likely within 19%" in told(capsys, command, sure)
        assert "Cycles on hardware" not in told(capsys, command, silent)


def test_the_summary_page_marks_what_is_judged_by_similar_operators(
    sure: Path, silent: Path
) -> None:
    from ipuscope.viewer.pages.summary import _confidence

    with open_report(sure) as report:
        (card,) = _confidence(report)
        words = str(card)
    assert "likely within 19%" in words and "product, 75.0% of cycles" in words
    assert "within 12.0%, by 200 measurements" in words
    assert "within 40.0%, an estimate" in words and "from similar operators" in words
    with open_report(silent) as report:
        assert _confidence(report) == []


def test_an_optimiser_counts_once_for_all_micro_batches() -> None:
    """Nobody measured it on its own, so its share is what accumulation changes."""

    def unmeasured(accumulation: int) -> float:
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(accumulation)
        wrapped = WithLoss(torch.nn.Linear(256, 256))
        optimiser = torch.optim.AdamW(wrapped.parameters())
        x = torch.zeros(16, 256)
        executable = compile_step(wrapped, (x, x), {}, options, optimiser, True)
        share: float = cycle_error(executable)["unmeasured"]
        return share

    assert unmeasured(64) < 0.75 * unmeasured(1)


class WithLoss(torch.nn.Module):
    """A layer and how far its result is off."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, torch.nn.functional.mse_loss(y, target)
