"""Quantities formatted for people."""

from __future__ import annotations

import pytest

from ipuscope.profiler import units


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (0.4826356, "483 ms"),
        (922.1e-6, "922 µs"),
        (0.9996, "1.00 s"),
        (1.25e-9, "1.25 ns"),
        (3599.0, "3,599 s"),
        (0.0, "0 ns"),
        (-0.0021, "-2.10 ms"),
    ],
)
def test_a_time_has_three_digits_and_its_unit(time: float, said: str) -> None:
    assert units.seconds(time) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (950, "950"),
        (31_249, "31.2 k"),
        (999_999, "1.00 M"),
        (1_150_000, "1.15 M"),
        (2e12, "2,000 G"),
    ],
)
def test_cycles_have_three_digits(number: float, said: str) -> None:
    assert units.cycles(number) == said


def test_one_thing_is_one_and_several_are_several() -> None:
    assert units.count(1, "IPU") == "1 IPU"
    assert units.count(1_472, "tile") == "1,472 tiles"
    assert units.count(0, "iteration") == "0 iterations"
    assert [units.count(n, "micro-batch") for n in (1, 2)] == ["1 micro-batch", "2 micro-batches"]


def test_ipus_are_a_list_in_english() -> None:
    said = [units.ipus(numbers) for numbers in ([3], [2, 4], [2, 3, 4])]
    assert said == ["IPU 3", "IPUs 2 and 4", "IPUs 2, 3 and 4"]


def test_bytes_and_shares() -> None:
    assert [units.size(n) for n in (1, 1536, 1 << 21)] == ["1 B", "1.5 KiB", "2.0 MiB"]
    assert units.percent(0.2413) == "24.1%"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ramp-up takes 64%", "Ramp-up takes 64%"),
        ("half, and no more", "Half, and no more"),
        ("model.half()  # and inputs", "model.half()  # and inputs"),
        ("layer2/conv/convolution is slow", "layer2/conv/convolution is slow"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_but_for_code(words: str, said: str) -> None:
    assert units.sentence(words) == said


def test_the_first_few_are_said_and_the_rest_counted() -> None:
    assert units.listed(["a", "b"], 2) == "a, b"
    assert units.listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert units.listed(list("abcde"), 2, "Block") == "a, b and 3 more Blocks"


def test_of_too_many_names_the_ends_are_said() -> None:
    names = [f"layer{number}" for number in range(4, 9)]
    assert units.ends_of(names[:2], 20) == "layer4, layer5"
    assert units.ends_of(names, 20) == "layer4 … layer8"
    assert len(units.ends_of(["embedding.words.first", *names], 20)) <= 20
    assert units.ends_of(["transformer.block.attention"], 10) == "tra…ention"


@pytest.mark.parametrize(
    ("number", "words"),
    [(1.0842, "1.08"), (42.31, "42.3"), (99.96, "100"), (755.6, "756"), (18442.4, "18,442")],
)
def test_a_rate_has_three_digits_at_the_least(number: float, words: str) -> None:
    assert units.per_second(number) == words


def test_a_split_of_many_stages_counts_equal_neighbours() -> None:
    assert units.folded("-".join(["1"] * 60 + ["2"] * 4)) == "60x1-4x2"
    assert units.folded("2-1-1 on 0,1,0") == "2-1-1 on 0,1,0"


def test_an_estimate_has_three_digits() -> None:
    assert units.in_three_digits(557_000_044) == "557,000,000"
    assert units.in_three_digits(-1_234.4) == "-1,230"
    assert units.in_three_digits(42) == "42"
