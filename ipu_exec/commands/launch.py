"""Several instances of one script: started, monitored and ended by torchrun.

`torch.distributed.launcher` starts the processes, prefixes their lines, forwards signals, and
ends all of them when one has failed. Hosts meet by torchrun's rendezvous options.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipu_exec.errors import Error, UsageError
from ipu_exec.instances import IPUS_VARIABLE, REPLICAS_VARIABLE

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

PREFIX = "[${rank}] "
SECONDS_TO_END = 5  # that the others have when one has failed, until they are killed
_CHILD = (
    "import sys; from ipu_exec.commands.run import run_instance;"
    " sys.exit(run_instance(sys.argv[1:]))"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to launch: ``instances`` on all hosts, with ``replicas`` together."""

    instances: int
    replicas: int
    ipus_per_replica: int = 1
    hosts: int = 1
    host: int | None = None  # which of them this is; None: in order of arrival
    backend: str = "c10d"
    endpoint: str = ""  # where the hosts meet; this machine alone needs none
    run_id: str = ""
    configuration: str = ""
    local_address: str | None = None

    def check(self) -> None:
        """UsageError if replicas do not divide among instances, or instances among hosts."""
        if self.replicas % self.instances:
            fewer = range(1, self.instances + 1)
            near = max(count for count in fewer if self.replicas % count == 0)
            raise UsageError(
                f"{self.instances} instances do not divide {self.replicas} replicas: each instance"
                f" has as many. Take {near} instances, or a"
                f" multiple of {self.instances} replicas"
            )
        if self.instances % self.hosts:
            raise UsageError(
                f"{self.hosts} hosts do not divide {self.instances} instances: each host has as"
                " many. --instances counts those of all hosts"
            )
        if self.hosts > 1 and not self.endpoint:
            raise UsageError(
                f"{self.hosts} hosts need a place to meet: --rdzv-endpoint HOST:PORT, the same on"
                " each"
            )


def wanted(args: argparse.Namespace) -> Wanted:
    """The launch that the arguments of `add_arguments` request. UsageError if it is impossible."""
    endpoint, backend = args.rdzv_endpoint, args.rdzv_backend
    if args.master_addr or args.master_port is not None:
        if endpoint:
            raise UsageError("say --rdzv-endpoint, or --master-addr and --master-port, not both")
        endpoint = f"{args.master_addr or '127.0.0.1'}:{args.master_port or 29500}"
        backend = backend or ("static" if args.node_rank is not None else "c10d")
    request = Wanted(
        instances=args.instances,
        replicas=args.replicas or args.instances,
        ipus_per_replica=args.ipus_per_replica,
        hosts=args.nnodes,
        host=args.node_rank,
        backend=backend or "c10d",
        endpoint=endpoint,
        run_id=args.rdzv_id,
        configuration=args.rdzv_conf,
        local_address=args.local_addr,
    )
    request.check()
    return request


def launch(asked: Wanted, program: Sequence[str], arguments: Sequence[str]) -> int:
    """Run the program of these words in every instance of this host; returns the exit status.

    0, or that of the first that failed (128 + its signal). Error if the hosts do not connect.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher import api

    _quieten()
    _set_environment(asked)
    logs = tempfile.mkdtemp(prefix="ipu-run-instances-")
    command = ["-c", _CHILD, *program, *arguments]
    try:
        api.launch_agent(_configuration(asked, logs), sys.executable, command)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"ipu-run: instance {rank} {_ending(failure.exitcode)}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except (SignalException, KeyboardInterrupt) as error:
        return 128 + int(getattr(error, "sigval", signal.SIGINT))
    except (RendezvousError, RuntimeError, OSError, ValueError) as error:
        raise Error(_no_meeting(asked, error)) from error
    finally:
        shutil.rmtree(logs, ignore_errors=True)
    return 0


def _quieten() -> None:
    """Silence torchrun's messages about processes that end: ours say which, and how."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _set_environment(asked: Wanted) -> None:
    os.environ[REPLICAS_VARIABLE] = str(asked.replicas)
    os.environ[IPUS_VARIABLE] = str(asked.ipus_per_replica)
    # what this process imports from where, they do too
    os.environ["PYTHONPATH"] = os.pathsep.join([path for path in sys.path if path])
    os.environ["PYTHONUNBUFFERED"] = "1"  # lines come when they are written
    local = asked.instances // asked.hosts
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // local)))


def _configuration(asked: Wanted, logs: str) -> LaunchConfig:
    """Torchrun's configuration for this host."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig as Configuration

    settings: dict[str, Any] = {}
    for item in filter(None, asked.configuration.split(",")):
        name, _, value = item.partition("=")
        settings[name.strip()] = value.strip()
    if asked.backend == "static":
        settings |= {"rank": asked.host or 0}
    elif asked.host is not None or (asked.hosts == 1 and asked.endpoint):
        # the host that opens the port reports if it is taken, and joins nothing that is there
        settings.setdefault("is_host", str(not asked.host))
    settings.setdefault("timeout", 300)
    return Configuration(
        min_nodes=asked.hosts,
        max_nodes=asked.hosts,
        nproc_per_node=asked.instances // asked.hosts,
        run_id=asked.run_id or ("ipu-run" if asked.hosts > 1 else uuid.uuid4().hex),
        rdzv_backend=asked.backend,
        rdzv_endpoint=asked.endpoint or "127.0.0.1:0",
        rdzv_configs=settings,
        max_restarts=0,
        local_addr=asked.local_address or ("127.0.0.1" if asked.hosts == 1 else None),
        logs_specs=DefaultLogsSpecs(log_dir=logs, tee=Std.ALL),
        log_line_prefix_template=PREFIX,
        shutdown_timeout=SECONDS_TO_END,
    )


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"failed (exit status {exit_code}): the others were ended"
    name = str(-exit_code)
    with contextlib.suppress(ValueError):
        name = signal.Signals(-exit_code).name
    return f"was killed by {name}: the others were ended"


def _no_meeting(asked: Wanted, error: BaseException) -> str:
    words = "; ".join(_chain(error))
    where = asked.endpoint or "this machine"
    if "EADDRINUSE" in words or "in use" in words.lower():
        return (
            f"the instances cannot meet at {where}: that port is taken by another program. Choose"
            " another port"
        )
    return (
        f"the instances cannot meet at {where}: {words}. All"
        " hosts need the same --rdzv-endpoint and --rdzv-id, and nothing else may use that port"
    )


def _chain(error: BaseException | None) -> Iterator[str]:
    """An error's message, and those of its causes: one line each."""
    while error is not None:
        yield (str(error).splitlines() or [type(error).__name__])[0]
        error = error.__cause__
