"""Command lines of `ipu-run` and `poprun`, parsed without PyTorch so that --help is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from ipuscope.help_text import HelpText
from ipuscope.planner.mappings.question import (
    FIXED,
    OBJECTIVES,
    QuestionError,
    parse_fixed,
    parse_seconds,
)
from ipuscope.words import Parser, add_flag, add_number, add_version, positive

# options that mean nothing without one of these
_NEED = {
    ("plan", "tune"): (
        *("allow", "global_batch", "micro_batches", "proportions", "fix", "objective", "budget"),
        *("verify", "write", "json", "csv", "ray"),
    ),
    ("plan", "tune", "sweep"): ("workers",),
    ("instances",): (
        *("replicas", "ipus_per_replica", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint"),
        *("rdzv_id", "rdzv_conf", "master_addr", "master_port", "local_addr"),
    ),
}
# options that would be ignored beside these
_REFUSED = {
    "plan": ("tune", "sweep", "instances", "placement", "num_ipus", "profile_dir", "no_source"),
    "tune": ("sweep", "instances", "placement", "num_ipus", "profile_dir", "no_source"),
    "sweep": ("instances", "placement", "num_ipus", "levers", "no_source"),
    "json": ("csv",),
}
_CALLED = {"levers": "with", "tune": "tune N", "plan": "plan N"}


_TUNED = 3  # compiles of the best, for --tune
# what --allow takes, as --with has it
CHANGES = {"half": "half", "outputs": "outputs=loss", "overlap": "overlap"}
_ABOUT = """the best mapping of the script's training onto a pod (docs/plan.md): how many IPUs
share a stage's tensors (t), are a pipeline (p) and are replicas (r), which Blocks
are a stage, micro-batch, accumulation, recomputation, and where state lies
  ipu-run --tune 4 train.py              search, compile the best three, write tuned.json
  ipu-run --tune 4 --allow half train.py                  ... and the same in half precision
  ipu-run --plan 16 train.py                              a table, and why the first is best
  ipu-run --plan 16 --fix p=4 --micro-batches 1,2 train.py    only pipelines of 4, and these
  ipu-run --plan 16 --verify 3 --write plan.json train.py     compile the best three; keep it
  ipu-run --placement plan.json train.py                      and run the script with it
Ctrl-C ends the search and prints what was found (exit status 130; SIGTERM: 143)"""


_EXAMPLES = """examples:
  ipu-run train.py --epochs 3
  ipu-run --profile-dir out train.py --epochs 3  and write out/training/profile.pop
  ipu-run --target bow train.py                  on Bow IPUs rather than mk2
  ipu-run --compile-only --profile-dir out train.py     only what it would cost: no training
  ipu-run --with half,micro-batch=8 --profile-dir out train.py     the same with levers pulled
  ipu-run --placement placement.json train.py           with the stages that rebalance proposed
  ipu-run --num-ipus 4 train.py                         with the quickest mapping of its Blocks
                                                        (of its layers, where it names none)
  ipu-run --plan 16 --write plan.json train.py          the best mapping onto 16 IPUs
  ipu-run -m pytest tests                               a module, as python -m runs it
  ipu-run --instances 4 --replicas 8 train.py           as 4 processes that share 8 replicas
then: ipu-report summary out/training"""


def parse(argv: Sequence[str] | None = None, prog: str = "ipu-run") -> argparse.Namespace:
    """Parse the options of `ipu-run`, named ``prog`` in errors; SystemExit(2) on a conflict."""
    parser = run_parser(prog)
    args = parser.parse_args(argv)
    args.command = [prog, *(sys.argv[1:] if argv is None else argv)]  # for the profile's header
    _check(parser, args)
    if args.tune is not None:
        args.plan = args.tune
        args.verify, args.write = args.verify or _TUNED, args.write or "tuned.json"
    try:
        _check_plan(args)
    except QuestionError as error:
        parser.exit(2, f"{prog}: error: {error}\n")
    return args


def changes(args: argparse.Namespace) -> list[str]:
    """What ``--allow`` names."""
    return [name for name in (part.strip() for part in args.allow.split(",")) if name]


def run_parser(prog: str = "ipu-run") -> argparse.ArgumentParser:
    """The parser of `ipu-run`."""
    parser = Parser(
        prog=prog,
        description="Run a PopTorch script on modelled IPUs: its poptorch is ipu_exec.",
        epilog=_EXAMPLES,
        formatter_class=HelpText,
        allow_abbrev=False,  # a script's own words are compared with abbreviations, too
    )
    add_version(parser)
    parser.add_argument(
        "--profile-dir", metavar="DIR", help="write DIR/training/profile.pop and DIR/inference/..."
    )
    # the former name, after the vendor's engine option
    parser.add_argument("--autoreport", dest="profile_dir", help=argparse.SUPPRESS)
    parser.add_argument(
        "--target", metavar="NAME", help="machine to model: mk1, mk2 (default), c600, bow"
    )
    parser.add_argument(
        "--placement",
        metavar="FILE",
        help="take the stages from this file (ipu-report rebalance -o), not from the script",
    )
    add_number(
        parser,
        "--num-ipus",
        "put the script's Blocks (its model's layers, if it names none) on N IPUs with the"
        " stages, replicas and micro-batches that --plan N finds quickest (the script runs"
        " twice up to its training)",
    )
    words = "end when the training (else the inference) is compiled and its profile written"
    add_flag(parser, "--compile-only", words)
    parser.add_argument(
        "--with",
        dest="levers",
        metavar="LEVERS",
        help=(
            "compile only, with other settings: half, float, micro-batch=N, micro-batches=N (a"
            " weight update), replicas=N, recompute=yes|no, outputs=all|final|loss,"
            " state=on-chip|off-chip|in-parts, overlap (host I/O beside compute, in sharded"
            " execution), separated by commas"
        ),
    )
    add_flag(parser, "--no-source", "leave the text of the script's files out of the profile")
    add_flag(parser, "--lenient", "accept, with a warning, what works here but PopTorch refuses")
    _add_sweep(parser)
    _add_plan(parser)
    _add_instances(parser)
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module, as python -m does; the arguments after it are its own",
    )
    parser.add_argument("script", nargs="?", help="the Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with 2 if options cannot be combined."""
    if args.script is None and not args.module:
        parser.error("say what to run: a script, or -m and a module")
    if args.num_ipus is not None and args.placement is not None:
        parser.error(
            "--num-ipus chooses a placement, and --placement gives one: leave one of them out"
        )
    plans = args.plan is not None or args.tune is not None
    if plans and args.compile_only:
        parser.error("--plan and --tune compile what they need: leave --compile-only out")
    if args.replicas is not None and args.instances is None:
        parser.error(
            "--replicas counts those of all instances: say --instances too, or set"
            " Options.replicationFactor in the script"
        )
    given = [name for name, value in vars(args).items() if value != parser.get_default(name)]
    for needed, names in _NEED.items():
        alone = [name for name in names if name in given]
        if alone and not set(needed) & set(given):
            parser.error(f"{_option(alone[0])} needs {' or '.join(map(_option, needed))}")
    for one, others in _REFUSED.items():
        beside = [name for name in others if name in given]
        if one in given and beside:
            parser.error(
                f"{_option(one)} cannot be combined with {' or '.join(map(_option, beside))}"
            )


def _option(name: str) -> str:
    return f"--{_CALLED.get(name, name.replace('_', '-'))}"


def _add_plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("plan", _ABOUT)
    add_number(group, "--plan", "find the best mapping onto N IPUs")
    words = "--plan N, with the best three compiled and the plan written to tuned.json"
    add_number(group, "--tune", words)
    group.add_argument(
        "--allow",
        default="",
        metavar="CHANGES",
        help="plan once more with these changes, separated by commas: half, outputs (the loss"
        " only), overlap (host I/O beside compute, one stage a replica)",
    )
    words = "samples of a weight update, over all replicas (default: the script's)"
    add_number(group, "--global-batch", words)
    group.add_argument(
        "--micro-batches", metavar="N,N", help="micro-batches to try, in samples of one replica"
    )
    group.add_argument(
        "--proportions",
        metavar="X,X",
        help="memory proportions to try (default: its own, 0.2, 0.6)",
    )
    group.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"values that the plan must have: {', '.join(FIXED)} (may be repeated)",
    )
    group.add_argument(
        "--objective", choices=OBJECTIVES, default=OBJECTIVES[0], help="what counts as best"
    )
    group.add_argument("--budget", metavar="TIME", help="start no compile after 90s, 5m or 1h")
    add_number(group, "--verify", "compile the best N in full")
    group.add_argument(
        "--write", metavar="FILE", help="save the plan: --placement FILE runs the script with it"
    )
    add_flag(group, "--json", "print the plan as JSON")
    add_flag(group, "--csv", "print the plan as CSV, a row for each mapping")
    add_number(group, "--workers", "processes that compile (default: 1)")
    group.add_argument(
        "--ray", metavar="ADDRESS", help="compile on a Ray cluster, or 'local': on this machine"
    )


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help=(
            "compile with each of these values, as --with takes them (micro-batch=1,2,4), or of an"
            " option (Training.gradientAccumulation=16,64); several make every combination, each"
            " with a profile below --profile-dir, which ipu-report runs lists"
        ),
    )


def _add_instances(parser: argparse.ArgumentParser) -> None:
    """Add ``--instances``, ``--replicas`` and torchrun's options for several hosts."""
    group = parser.add_argument_group("several instances of the script")
    add_number(group, "--instances", "processes of the script, on all hosts", "I")
    add_number(group, "--replicas", "replicas of all instances (default: one each)", "R")
    add_number(group, "--ipus-per-replica", "passed on to the script", "K", default=1)
    group = parser.add_argument_group("instances on several hosts (torchrun's options)")
    add_rendezvous(group)


def add_rendezvous(group: argparse._ActionsContainer) -> None:
    """Add torchrun's options for several hosts, under its names."""

    def add(name: str, **settings: object) -> None:
        group.add_argument(f"--{name}", f"--{name.replace('-', '_')}", **settings)  # type: ignore[arg-type]

    add("nnodes", type=positive, default=1, metavar="H", help="hosts; run this on each of them")
    add("node-rank", type=int, metavar="N", help="which of them this is (static rendezvous)")
    add("rdzv-backend", default="", metavar="NAME", help="c10d (default), static, etcd-v2")
    add("rdzv-endpoint", default="", metavar="HOST:PORT", help="where the hosts meet")
    add("rdzv-id", default="", metavar="ID", help="the same on each host")
    add("rdzv-conf", default="", metavar="K=V,...", help="settings of the rendezvous")
    add("master-addr", default="", metavar="HOST", help="address of host 0 (static rendezvous)")
    add("master-port", type=int, metavar="PORT", help="port of host 0 (static rendezvous)")
    add("local-addr", metavar="HOST", help="this host, as the others reach it")


def numbers(name: str, text: str | None, kind: Callable[[str], float]) -> tuple[int, ...]:
    """Numbers separated by commas; QuestionError unless all are above 0."""
    try:
        values = tuple(kind(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise QuestionError(f"{name} takes numbers separated by commas, not {text!r}") from None
    if any(number <= 0 for number in values):
        raise QuestionError(f"{name} takes numbers above 0, not {text!r}")
    return values  # type: ignore[return-value]


def _check_plan(args: argparse.Namespace) -> None:
    """QuestionError where an option's value makes no sense."""
    for name in changes(args):
        if name not in CHANGES:
            raise QuestionError(f"--allow {name!r}: there are {', '.join(CHANGES)} to allow")
    if changes(args) and (args.json or args.csv):
        raise QuestionError("--allow makes several plans, and --json and --csv print one plan")
    fixed = parse_fixed(args.fix)
    overlap = "overlap" in (*changes(args), *(args.levers or "").split(","))
    if overlap and fixed.get("p", 1) > 1:
        raise QuestionError("overlap: PopTorch refuses it in a pipeline: leave --fix p out")
    numbers("--micro-batches", args.micro_batches, int)
    numbers("--proportions", args.proportions, float)
    if args.budget:
        parse_seconds(args.budget)
