"""`ipu-report compare`: what changed, and a check in CI that never passes falsely."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipuscope.profiler import analysis, open_report
from ipuscope.reports.cli import main
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile and a slower one, each run and only compiled, and one with more micro-batches."""
    root = tmp_path_factory.mktemp("compare")
    for name, runs in (("ran", 1), ("compiled", 0)):
        synthetic_profile(root / f"{name}.pop", runs=runs)
        synthetic_profile(root / f"{name}-slower.pop", runs=runs, steps_per_body=9)
    synthetic_profile(root / "longer.pop", runs=0, micro_batches=40)
    return root


def changed(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for sql in statements:
            connection.execute(sql)
    return path


def compared(
    capsys: pytest.CaptureFixture[str], *argv: object
) -> tuple[int, dict[str, dict[str, float]], str]:
    """Run `ipu-report compare`; returns the exit code, the measures by name and standard error."""
    code = main(["compare", "--json", *map(str, argv)])
    captured = capsys.readouterr()
    (page,) = json.loads(captured.out)
    return code, {row["what"]: row for row in page["compare"]}, captured.err


@pytest.mark.parametrize(("a", "b"), [("ran", "compiled"), ("compiled", "ran")])
def test_compiled_or_executed_a_rule_finds_what_is_slower(
    profiles: Path, capsys: pytest.CaptureFixture[str], a: str, b: str
) -> None:
    """Both weight updates are those of the schedule, and a rule fails only where exceeded."""
    one, two = profiles / f"{a}.pop", profiles / f"{b}-slower.pop"
    with open_report(one) as first, open_report(two) as second:
        cycles = [analysis.pace(report).cycles for report in (first, second)]
    change = cycles[1] / cycles[0] - 1
    assert change > 0.2
    code, rows, err = compared(capsys, one, two, "--fail-if", "cycles>+3%")
    assert code == 1
    assert [rows["a weight update"][name] for name in "ab"] == cycles
    assert f"cycles {change:+.1%}, more than +3.0%: {cycles[0]:,} to {cycles[1]:,} cycles" in err
    for rule in (f"cycles>+{100 * change + 1:.0f}%", f"stage>+{100 * change + 30:.0f}%"):
        assert compared(capsys, one, two, "--fail-if", rule)[0] == 0
    assert compared(capsys, one, two, "--fail-if", "stage>+3%")[0] == 1
    assert compared(capsys, two, one, "--fail-if", "cycles>+3%")[0] == 0
    code, rows, err = compared(capsys, one, profiles / f"{b}.pop", "--fail-if", "cycles>+0%")
    assert (code, err) == (0, "")
    assert rows["a weight update"]["ratio"] == 1


def test_updates_of_other_sizes_are_compared_by_the_sample(
    profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More micro-batches make an update longer, but take fewer cycles per sample."""
    pair = profiles / "compiled.pop", profiles / "longer.pop"
    code, rows, err = compared(capsys, *pair, "--fail-if", "cycles>+400%")
    assert code == 1
    assert "cycles cannot be compared: it is of 400 samples in A and of 1,600 in B" in err
    assert rows["a sample"]["ratio"] < 1 < rows["a weight update"]["ratio"]
    assert rows["a sample"]["b"] == pytest.approx(rows["a weight update"]["b"] / 1600)
    assert compared(capsys, *pair, "--fail-if", "sample>+0%")[0] == 0
    code, _, err = compared(capsys, *reversed(pair), "--fail-if", "sample>+3%")
    assert (code, "sample +" in err) == (1, True)


@pytest.mark.parametrize(
    ("sql", "rule", "why"),
    [
        ("DELETE FROM traces", "cycles>+3%", "B has none"),
        ("DELETE FROM traces", "sample>+3%", "B has none"),
        ("UPDATE meta SET value = '\"inference\"' WHERE key = 'kind'", "memory>+3%", "inference"),
        ("UPDATE ops SET name = 'x' || name", "cycles>+3%", "no operator in common"),
        ("UPDATE target SET bytes_per_tile = 220000", "cycles>+3%", "B does not fit"),
    ],
)
def test_what_cannot_be_compared_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sql: str, rule: str, why: str
) -> None:
    one = synthetic_profile(tmp_path / "a.pop", runs=0)
    two = changed(synthetic_profile(tmp_path / "b.pop", runs=0), sql)
    code, _, err = compared(capsys, one, two, "--fail-if", rule)
    assert code == 1
    assert why in err
    assert compared(capsys, one, two)[0] == 0  # nothing was asked


def test_what_is_as_long_in_both_is_a_sentence_and_programs_get_all(
    profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = str(profiles / "ran.pop")
    assert main(["compare", same, same]) == 0
    said = capsys.readouterr().out
    (page,) = json.loads(_json(capsys, same, same))
    assert "operators, the largest differences first" not in said
    assert f"{len(page['operators'])} operators take as long in both." in " ".join(said.split())


def test_what_cannot_be_compared_is_one_sentence_a_reason(
    profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "inference.pop"
    other.write_bytes((profiles / "ran.pop").read_bytes())
    changed(other, "UPDATE meta SET value = '\"inference\"' WHERE key = 'kind'")
    for path, rules in ((profiles / "ran.pop", "one"), (other, "two")):
        changed(path, f"INSERT OR REPLACE INTO meta VALUES ('rules', '\"{rules}\"')")
    assert main(["compare", str(profiles / "ran.pop"), str(other)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("cannot be compared: A is training and B is inference.") == 1
    assert said.count("compiled by different versions of IPUscope or PyTorch") == 1
    assert main(["compare", *[str(other)] * 2]) == 0
    assert "different versions" not in capsys.readouterr().out


def test_what_is_out_of_memory_has_no_rate_anywhere(
    profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = tmp_path / "over" / "profile.pop"
    over.parent.mkdir()
    over.write_bytes((profiles / "ran.pop").read_bytes())
    changed(over, "UPDATE meta SET value = '\"out of memory\"' WHERE key = 'state'")
    changed(over, "UPDATE target SET bytes_per_tile = 220000")
    _, rows, _ = compared(capsys, profiles / "ran.pop", over)
    assert rows["samples a second"]["a"] > 0 and rows["samples a second"]["b"] is None
    assert main(["compare", str(profiles / "ran.pop"), str(over)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Samples a second, MFU and HFU cannot be compared: B is out of memory: tile" in said
    assert main(["runs", "--json", str(over)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["runs"][0]["samples_per_second"] is None
    assert main(["whatif", "--json", str(over)]) == 1
    assert json.loads(capsys.readouterr().out)[0]["whatif"][0]["samples_per_second"] is None
    assert main(["summary", str(over)]) == 0
    assert "none: it does not fit" in capsys.readouterr().out


def test_shares_of_different_peaks_are_not_compared(
    profiles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In half precision MFU falls where the model is quicker: the peak is four times as high."""
    dtypes = {"ran.pop": "float32", "compiled.pop": "float16"}
    monkeypatch.setitem(
        analysis.not_comparable.__globals__,
        "peak",
        lambda report: SimpleNamespace(dtype=dtypes[report.path.name], mfu=0.2, hfu=0.3),
    )
    assert main(["compare", str(profiles / "ran.pop"), str(profiles / "compiled.pop")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "MFU and HFU cannot be compared: they are of the fp32 peak in A and of the fp16" in said


def _json(capsys: pytest.CaptureFixture[str], *paths: str) -> str:
    assert main(["compare", "--json", *paths]) == 0
    return capsys.readouterr().out


def test_of_waits_only_those_that_differ_are_printed(
    profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, slower = profiles / "ran.pop", profiles / "ran-slower.pop"
    assert main(["compare", str(one), str(one)]) == 0
    said = capsys.readouterr().out
    assert "On the critical path nothing differs." in said and "waits for" not in said
    assert main(["compare", str(one), str(slower)]) == 0
    said = capsys.readouterr().out
    assert "nothing differs" not in said and "waits for" in said
    assert main(["compare", "--json", str(one), str(one)]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    assert page["waits"] and not any(row["difference"] for row in page["waits"])
