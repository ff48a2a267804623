"""Every pair of `ipu-run`'s options is applied or refused; none is ignored."""

from __future__ import annotations

import argparse
from itertools import combinations

import pytest

from ipuscope.run_arguments import parse, run_parser

# how each part of the command reads the options: what no part of a mode reads it refuses
COMPILES = {"target", "lenient", "levers"}
SCRIPT = COMPILES | {"profile_dir", "placement", "num_ipus", "compile_only", "no_source"}
PLAN = COMPILES | {
    *("allow", "global_batch", "micro_batches", "proportions", "fix", "objective", "budget"),
    *("verify", "write", "json", "csv", "ray", "workers"),
}
INSTANCES = SCRIPT | {
    *("replicas", "ipus_per_replica", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint"),
    *("rdzv_id", "rdzv_conf", "master_addr", "master_port", "local_addr"),
}
SWEEP = {"target", "lenient", "profile_dir", "workers", "compile_only"}
MODES = {"plan": PLAN, "tune": PLAN, "instances": INSTANCES, "sweep": SWEEP}
NOT_BOTH = ({"num_ipus", "placement"}, {"json", "csv"}, {"allow", "json"}, {"allow", "csv"})
VALUES = {
    "fix": "p=2",
    "objective": "latency",
    "budget": "5m",
    "allow": "half",
    "sweep": "micro-batch=1,2",
    "levers": "half",
}


def options() -> dict[str, argparse.Action]:
    """By the name of its value, but for words that are no option and those of before."""
    return {
        one.dest: one
        for one in run_parser()._actions
        if one.option_strings and one.dest not in ("help", "version", "ipus", "module")
    }


def words(name: str, action: argparse.Action) -> list[str]:
    option = max(action.option_strings, key=len)
    return [option] if action.nargs == 0 else [option, VALUES.get(name, "2")]


def accepted(*names: str) -> bool:
    every = options()
    try:
        parse([*(word for name in names for word in words(name, every[name])), "train.py"])
    except SystemExit:
        return False
    return True


@pytest.mark.parametrize("mode", ["", *MODES])
def test_each_pair_of_options_is_applied_or_refused(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reads = MODES.get(mode, SCRIPT)
    head = [mode] if mode else []
    for pair in combinations([one for one in options() if one != mode], 2):
        applied = set(pair) <= reads and set(pair) not in NOT_BOTH
        assert accepted(*head, *pair) == applied or (not mode and set(pair) & set(MODES)), pair
    capsys.readouterr()
