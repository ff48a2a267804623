"""`ipu-run --instances` and `poprun` with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ipuscope import commands
from ipuscope.profiler import open_report
from ipuscope.profiler.analysis.facts import shared
from tests.paths import ROOT

SCRIPT = Path(__file__).with_name("script.py")


def environment(**more: str) -> dict[str, str]:
    strange = ("POPLAR_ENGINE_OPTIONS", "IPUSCOPE_TARGET", "MASTER_ADDR", "MASTER_PORT")
    env = {key: value for key, value in os.environ.items() if key not in strange}
    return env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def begin(*argv: object, name: str = "ipu-run", **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ipuscope.commands", name, *map(str, argv)],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*argv: object, name: str = "ipu-run", **more: str) -> subprocess.CompletedProcess[str]:
    return end(begin(*argv, name=name, **more))


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.slow
def test_poprun_runs_a_script_twice_with_two_replicas_each(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = run(
        *("-vv", "--num-instances", 2, "--num-replicas=4", "--ipus-per-replica", 2),
        *("--numa-aware=yes", "--verbose"),
        *("--executable-cache-path", cache, "--vipu-partition", "p", "--host", "a", "--host", "b"),
        *("python3", SCRIPT, tmp_path, "group"),
        name="poprun",
        POPLAR_ENGINE_OPTIONS=json.dumps(
            {"autoReport.all": "true", "autoReport.directory": str(tmp_path)}
        ),
    )
    assert done.returncode == 0, done.stderr
    ignored = [line for line in done.stderr.splitlines() if "poprun: ignored" in line]
    assert len(ignored) == 1
    assert "--host, --vipu-partition, --numa-aware" in ignored[0] and "verb" not in ignored[0]
    for instance in range(2):
        assert f"[{instance}] instance {instance} is done" in done.stdout.splitlines()
    assert "instances began with different values" in done.stderr

    instances = seen(tmp_path)
    assert len(instances) == 2
    for instance, said in enumerate(instances):
        assert said["set"] is True and said["instance"] == [instance, 2, instance, 2, instance]
        assert said["replicas"] == [4, 2, 2 * instance, 2, instance]
        assert said["options"] == [2, instance, 2, instance, 2]
        assert said["ran"] == ("ran" if instance == 0 else None)
        assert said["own"] == 2
        assert said["broadcast"] == [5] and said["mean"] == [0.5] and said["sum"] == [3]
        assert said["gathered"] == [0, 1, 1]
        assert said["object"] == {"from": 0}
        assert said["rows"] == 4
        assert said["weights"] == instances[0]["weights"]
    assert len(list(cache.glob("*.ipuexec"))) == 1

    assert [path.parent.name for path in tmp_path.glob("*/profile.pop")] == ["training"]
    with open_report(tmp_path / "training") as report:
        assert str(shared(report)) == "2 instances x 2 replicas x 1 IPU"
        peers = report.meta["instances"]
        parts = [(peer["first_replica"], peer["replicas"]) for peer in peers]
        assert parts == [(0, 2), (2, 2)]
        assert {peer["host"] for peer in peers} == {socket.gethostname()}
        steps = report.program_steps()
        reduced = steps[steps["purpose"].isin(["all-reduce", "reduce-scatter", "all-gather"])]
        exchanges = reduced[reduced["type"] == "GlobalExchange"]
        assert (exchanges["bytes_in"] > 0).all() and (exchanges["cycles"] > 0).all()
        assert list(exchanges["name"]) == [
            "ReduceScatter in an instance",
            "AllReduce across instances",
            "AllGather in an instance",
        ]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "status"), [("raise", 1), ("kill", 128 + signal.SIGKILL)])
def test_a_dead_instance_ends_the_others(tmp_path: Path, what: str, status: int) -> None:
    start = time.monotonic()
    done = run("--instances", 2, "--autoreport", tmp_path, SCRIPT, tmp_path, what)
    assert time.monotonic() - start < 120
    assert done.returncode == status, done.stderr
    assert done.stderr.count("Traceback") == (what == "raise")
    assert done.stderr.count("ValueError: this one fails") == (what == "raise")
    assert "ipu-run: instance 1 " in done.stderr.splitlines()[-1]
    assert seen(tmp_path) == []
    with open_report(tmp_path / "training") as report:  # whole, or not there
        assert report.meta["state"] in ("compiled", "executed")


@pytest.mark.slow
def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    process = begin("--instances", 2, SCRIPT, tmp_path, "sleep")
    assert process.stdout is not None
    for _ in range(2):  # torchrun may pass a line's end on as a line of its own
        while not process.stdout.readline().endswith("] waiting\n"):
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    done = end(process)
    assert done.returncode == 128 + signal.SIGINT
    assert time.monotonic() - start < 15
    assert "Traceback" not in done.stderr


def on_two_hosts(folder: Path, instances: int, what: str) -> list[subprocess.CompletedProcess[str]]:
    """The script by two launchers that meet on this machine, with half of the instances each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reports = {"autoReport.all": "true", "autoReport.directory": str(folder)}
    hosts = [
        begin(
            *("--instances", instances, "--replicas", 4, "--nnodes", 2, "--node-rank", host),
            *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "x"),
            *("--local-addr", "127.0.0.1", SCRIPT, folder, what),
            POPLAR_ENGINE_OPTIONS=json.dumps(reports),
        )
        for host in (0, 1)
    ]
    return [end(host) for host in hosts]


@pytest.mark.slow
def test_options_of_instances_on_two_hosts_are_compared(tmp_path: Path) -> None:
    done = on_two_hosts(tmp_path, 2, "differ")
    assert [one.returncode for one in done] == [1, 1], done
    said = "".join(one.stderr for one in done)
    assert "option deviceIterations is 1 in instance 0 and 2 in instance 1" in said


@pytest.mark.slow
def test_two_hosts_train_as_one_and_pay_the_way_between_them(tmp_path: Path) -> None:
    """That one host trains to the same numbers is in test_equality.py."""
    done = on_two_hosts(tmp_path, 4, "")
    assert [one.returncode for one in done] == [0, 0], done
    weights = [said["weights"] for said in seen(tmp_path)]
    assert len(weights) == 4 and weights == [weights[0]] * 4

    with open_report(tmp_path / "training") as report:
        assert str(shared(report)) == "4 instances on 2 hosts x 1 replica x 1 IPU"
        steps = report.program_steps()
        reduced = steps[steps["purpose"].isin(["all-reduce", "reduce-scatter", "all-gather"])]
        exchanges = reduced[reduced["type"] == "GlobalExchange"]
        assert list(exchanges["name"]) == [
            "ReduceScatter across instances",
            "AllReduce across hosts",
            "AllGather across instances",
        ]


@pytest.mark.parametrize(
    ("argv", "name", "words"),
    [
        (["--instances", 3, "--replicas", 8], "ipu-run", "3 instances do not divide 8 replicas"),
        (["--num-instances=3", "--num-replicas=8", "python3"], "poprun", "3 instances do not"),
        (["--instances", 3, "--nnodes", 2], "ipu-run", "2 hosts do not divide 3 instances"),
        (["--instances", 2, "--nnodes", 2], "ipu-run", "--rdzv-endpoint HOST:PORT"),
        (["--replicas", 2], "ipu-run", "say --instances too"),
        (["--num-instances=2", "bash", "-c"], "poprun", "it runs a Python script"),
        (["-vw", "python3"], "poprun", "-v/-vv/-vvv/--vv/--verbose takes no value, but has 'w'"),
        (["-n", 2, "--only-stdout-from-instance=2", "python3"], "poprun", "instances are 0 to 1"),
    ],
)
def test_what_cannot_be_is_said(
    argv: list[object], name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = commands.ipu_run if name == "ipu-run" else commands.poprun
    try:
        status: object = main([str(word) for word in [*argv, SCRIPT]])
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    assert words in re.sub(r"\s+", " ", capsys.readouterr().err)


@pytest.mark.parametrize(("name", "printed"), [("output", "1"), ("stdout", "01")])
def test_one_instance_alone_prints(name: str, printed: str, tmp_path: Path) -> None:
    source = "import os, sys\nfor file in (sys.stdout, sys.stderr): print('here', file=file)"
    (tmp_path / "script.py").write_text(source)
    words = ["-n", 2, f"--only-{name}-from-instance=1", "python3", tmp_path / "script.py"]
    done = run(*words, name="poprun")
    assert done.stdout.splitlines() == ["[1] here"] and not done.returncode
    lines = [line for line in done.stderr.splitlines() if line.endswith("here")]
    assert sorted(lines) == [f"[{instance}] here" for instance in printed]


@pytest.mark.slow
def test_a_busy_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = run("--instances", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", SCRIPT, tmp_path)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}: that port is taken" in done.stderr


def test_options_of_popdist_refuse_what_the_launch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from ipu_exec import popdist
    from ipu_exec.popdist.poptorch import Options

    assert not popdist.isPopdistEnvSet()
    alone = Options()
    assert (alone.Distributed.processId, alone.Distributed.numProcesses) == (0, 1)
    assert alone.replication_factor == 1
    facts = {"RANK": "1", "WORLD_SIZE": "4", "IPUSCOPE_REPLICAS": "8"}
    for name, value in facts.items():
        monkeypatch.setenv(name, value)
    options = Options(ipus_per_replica=2).deviceIterations(3)
    assert (options.replication_factor, options.ipus_per_replica) == (2, 2)
    assert options.clone().Distributed.processId == 1
    for name, call in {
        "useIpuId": lambda: options.useIpuId(1),
        "replicationFactor": lambda: options.replicationFactor(1),
        "Distributed.disable": lambda: options.Distributed.disable(),
        "Distributed.setEnvVarNames": lambda: options.Distributed.setEnvVarNames("A", "B"),
        "Distributed.configureProcessId": lambda: options.Distributed.configureProcessId(0, 2),
    }.items():
        with pytest.raises(
            RuntimeError, match=f"^Cannot call `{name}` with popdist.poptorch.Options$"
        ):
            call()


@pytest.mark.parametrize("workers", [0, 2])
def test_data_is_shared_as_with_poprun(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    import ipu_exec as poptorch
    from ipu_exec.popdist.poptorch import Options

    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    data = torch.utils.data.TensorDataset(torch.arange(50_000))
    assert len(torch.utils.data.DataLoader(data, 32, drop_last=True)) == 1_562
    loader = poptorch.DataLoader(poptorch.Options(), data, 32, num_workers=workers)
    assert len(loader) == 390
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "IPUSCOPE_REPLICAS": "8"}.items():
        monkeypatch.setenv(name, value)
    loader = poptorch.DataLoader(Options(), data, 32, num_workers=workers)
    batches = [batch for (batch,) in loader]
    assert len(batches) == len(loader) == 195
    assert {len(batch) for batch in batches} == {64}

    shuffled = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        options = Options().randomSeed(5)
        loader = poptorch.DataLoader(options, data, 32, shuffle=True, num_workers=workers)
        shuffled.append(torch.cat([batch for (batch,) in loader]))
    assert len(set(torch.cat(shuffled).tolist())) == 4 * 195 * 64


def test_a_distributed_sampler_is_taken_as_it_is() -> None:
    import ipu_exec as poptorch

    data = torch.utils.data.TensorDataset(torch.arange(16))
    options = poptorch.Options()
    options.Distributed.configureProcessId(1, 2)
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    loader = poptorch.DataLoader(options, data, 4, sampler=sampler)
    assert torch.cat([batch for (batch,) in loader]).tolist() == list(range(1, 16, 2))
    others = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(poptorch.Error, match="process 0 of 2, and this is process 1 of 2"):
        poptorch.DataLoader(options, data, 4, sampler=others)
    options = poptorch.Options()
    options.Distributed.configureProcessId(1, 5)
    with pytest.raises(poptorch.Error, match="16 samples, and 5 instances take 20"):
        poptorch.DataLoader(options, data, 4)
