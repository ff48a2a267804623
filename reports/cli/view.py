"""Open the profile in the viewer: the pipeline, one lane an IPU, and memory over tiles and steps.

The viewer listens on this machine only, unless --host says otherwise.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import getpass
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    import pandas as pd
    from dash import Dash

    from ipuscope.viewer.guard import Guard

HELP = "open the viewer in the browser"
EXAMPLES = """  ipu-report view demo/training
  ipu-report view before/training after/training       two profiles, and a page that compares them
  ipu-report view plan.json                            what ipu-run --plan 16 --write found
  ipu-report view runs                                 all profiles below runs, as a table
  ipu-report view --follow out                         a run as it goes (ipu-run --profile-dir out)
  ipu-report view demo/training --script "train.py --fast"      Rebalance's Check compiles splits
  ipu-report view --port 0 --no-browser demo/training  any free port; open the address yourself

  over ssh it prints the line for your own machine: ssh -L 8050:127.0.0.1:8050 you@there
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    words = "profile.pop, or a directory of one; a plan.json; or a directory above several"
    parser.add_argument("profiles", nargs="?", metavar="PROFILE", help=words)
    words = "show what runs write below DIR, as they go, and say when there is a new profile"
    parser.add_argument("--follow", metavar="DIR", help=words)
    parser.add_argument(
        "other", nargs="?", metavar="OTHER", help="a second profile, to compare with the first"
    )
    words = "where to listen (default: 127.0.0.1, this machine only)"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=words)
    words = "a host name of the viewer, for example behind a proxy (may be repeated)"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=words)
    words = "port to listen on, 0 for any free one (default: 8050)"
    parser.add_argument("--port", type=_port, default=8050, metavar="N", help=words)
    words = "the script of the profile, with its arguments: Rebalance compiles splits with it"
    parser.add_argument("--script", type=shlex.split, metavar="'FILE ARGS'", help=words)
    common.add_flag(parser, "--no-browser", "print the address instead of opening a browser")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    if (args.follow is None) == (args.profiles is None):
        raise common.CommandError("give a PROFILE, or --follow DIR", common.USAGE)
    if args.follow is not None:
        return _follow(args)
    if args.profiles.endswith(".json"):
        return _plan(args)
    paths, table = common.find_profiles([args.profiles]), None
    if args.other is None and len(common.runs_of(paths)) > 1:
        named, table = _runs(paths)
    else:
        named = [common.one_of(args.profiles, paths)]
        named += [] if args.other is None else [common.find_one(args.other)]
    port = free_port(args.host, args.port)  # before Dash is imported, which takes seconds
    from ipuscope.viewer.app import app_of
    from ipuscope.viewer.guard import Guard, is_loopback
    from ipuscope.viewer.profiles import Profiles, recent, remember

    guard = Guard.bound_to(args.host, args.allow_host)
    more = recent() if is_loopback(args.host) else []  # others may not open them
    profiles = Profiles((), args.script or (), named, [*paths, *more], remember)
    for key in profiles.named if table is None else ():
        profiles.get(key)  # what cannot be read ends the command
    if table is not None:
        profiles.made(profiles.get(), "runs", lambda: table)
    page = "" if table is None else "runs"
    _serve(args, app_of(profiles, guard), guard, args.profiles, port, page)
    return common.OK


def _runs(paths: Sequence[Path]) -> tuple[list[Path], pd.DataFrame]:
    """The profiles that can be read, and their rows."""
    from ipuscope.profiler.analysis.runs import runs

    table, problems = runs(paths)
    for problem in problems:
        print(f"ipu-report: {common.one_line(problem)}", file=sys.stderr)
    if table.empty:
        raise common.CommandError("no profile can be read", common.UNREADABLE)
    return [Path(one) for one in table["profile"]], table


def _plan(args: argparse.Namespace) -> int:
    """A plan's candidates (ipu-run --plan ... --write)."""
    from ipuscope.planner.mappings import PlanError, load

    if args.other is not None:
        raise common.CommandError("a plan is viewed alone", common.USAGE)
    try:
        plan = load(args.profiles)
    except PlanError as error:
        raise common.CommandError(str(error)) from error
    port = free_port(args.host, args.port)
    from ipuscope.viewer.guard import Guard
    from ipuscope.viewer.plan_app import create_plan_app

    guard = Guard.bound_to(args.host, args.allow_host)
    _serve(args, create_plan_app(plan, args.profiles, guard), guard, args.profiles, port)
    return common.OK


def _follow(args: argparse.Namespace) -> int:
    """Show the newest profiles below a directory; until there is one, a page that says so."""
    port = free_port(args.host, args.port)
    from ipuscope.viewer.app import following_app
    from ipuscope.viewer.guard import Guard
    from ipuscope.viewer.profiles import FollowedProfiles

    profiles = FollowedProfiles(args.follow)
    if not profiles.refresh():
        print(f"no profile is below {common.one_line(args.follow)} yet", flush=True)
    guard = Guard.bound_to(args.host, args.allow_host)
    _serve(args, following_app(profiles, guard), guard, str(args.follow), port)
    return common.OK


def _serve(
    args: argparse.Namespace, app: Dash, guard: Guard, what: str, port: int, page: str = ""
) -> None:
    """Print the address of a page, open a browser, and serve until Ctrl+C."""
    from ipuscope.viewer.guard import is_loopback

    faulthandler.enable()  # a crash prints its stack
    for one in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(one) is signal.SIG_DFL:  # nohup's stays
            signal.signal(one, _ended)
    address = f"http://{f'[{args.host}]' if ':' in args.host else args.host}:{port}"
    address += f"/{page}?token={guard.token}" if guard.token else f"/{page}"
    print(f"{common.one_line(what)} is at {address} (Ctrl+C ends it)", flush=True)
    if not is_loopback(args.host):
        print(
            f"note: {args.host} is not only this machine: whoever has this address sees the"
            " profile",
            flush=True,
        )
    if forward := ssh_forward(os.environ, args.host, port, getpass.getuser):
        print(f"from your own machine: {forward}, then open {address}", flush=True)
    # a session without a screen has no browser; editors that forward ports give one as BROWSER
    screen = not forward or {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & set(os.environ)
    if screen and not args.no_browser:
        import webbrowser  # which is slow to import

        opener = threading.Timer(1.0, webbrowser.open, (address,))
        opener.daemon = True
        opener.start()
    from ipuscope.viewer.app import serve

    serve(app, args.host, port)


def _ended(number: int, _: object) -> None:
    print(f"ipu-report: the viewer was ended by {signal.Signals(number).name}", file=sys.stderr)
    sys.exit(128 + number)


def ssh_forward(
    environment: Mapping[str, str], host: str, port: int, user: Callable[[], str]
) -> str:
    """The command that forwards the port of an SSH session to the user's machine; "" without one.

    A viewer that listens for other machines needs none. sshd gives the server's address as the
    third word of SSH_CONNECTION.
    """
    words = environment.get("SSH_CONNECTION", "").split()
    if len(words) != 4 or host not in ("127.0.0.1", "localhost", "::1"):
        return ""
    here = f"[{host}]" if ":" in host else host
    return f"ssh -L {port}:{here}:{port} {user()}@{words[2]}"


def free_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises CommandError if it is not available."""
    import socket

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise common.CommandError(
                f"port {port} of {host} is in use. Give another (--port 0: any free one), or end"
                " what has it"
            ) from error
        raise common.CommandError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}"
        ) from error


def _port(words: str) -> int:
    number = common.not_negative(words)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{number} is not a port: use 0 to 65535")
    return number
