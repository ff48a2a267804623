"""Options: PopTorch's methods, checks, profiles asked for in several ways, freezing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ipu_exec as poptorch
from ipu_exec import Error, Options, logs
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.compiler.placement.machines import machines_of
from ipu_exec.session.compile_options import compile_options

ENGINE = "POPLAR_ENGINE_OPTIONS"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENGINE, "POPTORCH_CACHE_DIR", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_methods_chain_and_values_are_read_as_attributes() -> None:
    options = Options().deviceIterations(3).replicationFactor(2).autoRoundNumIPUs().randomSeed(7)
    options.Training.gradientAccumulation(5).accumulationAndReplicationReductionType(
        poptorch.ReductionType.Sum
    )
    assert (options.device_iterations, options.replication_factor, options.random_seed) == (3, 2, 7)
    assert options.auto_round_num_ipus is True
    assert options.Training.gradient_accumulation == 5
    assert (
        options.Training.accumulation_and_replication_reduction_type is poptorch.ReductionType.Sum
    )
    assert options.batch_factor == 3 * 5 * 2


def test_variables_of_poptorch_are_heard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for given, model in (("1", True), ("0", None)):
        monkeypatch.setenv("POPTORCH_IPU_MODEL", given)
        assert Options().use_model is model
    monkeypatch.setenv("POPTORCH_LOG_LEVEL", "LOUD")
    logs.from_environment()
    assert "POPTORCH_LOG_LEVEL has no effect: Unknown log level: LOUD" in caplog.text


def test_input_groups_share_their_input() -> None:
    options = (
        Options().replicationFactor(4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    )
    assert options.batch_factor == 2
    with pytest.raises(Error, match="not a multiple of the group size"):
        _ = (
            Options()
            .replicationFactor(3)
            .inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
            .batch_factor
        )


@pytest.mark.parametrize(
    ("set_it", "says"),
    [
        (
            lambda o: o.deviceIterations(0),
            "deviceIterations takes a whole number, at least 1, not 0",
        ),
        (lambda o: o.deviceIterations(2.0), "not 2.0"),
        (lambda o: o.replicationFactor(True), "not True"),
        (lambda o: o.Training.gradientAccumulation(-1), "Training.gradientAccumulation"),
        (
            lambda o: o.Training.accumulationAndReplicationReductionType("Mean"),
            "ReductionType.Mean",
        ),
        (
            lambda o: o.Training.accumulationAndReplicationReductionType(
                poptorch.ReductionType.NoReduction
            ),
            "one grad",
        ),
        (lambda o: o.outputMode(3), "OutputMode.Sum"),
        (lambda o: o.outputMode(poptorch.OutputMode.EveryN), "needs output_return_period"),
        (lambda o: o.setExecutionStrategy("pipelined"), "PipelinedExecution"),
        (lambda o: o.setAvailableMemoryProportion({"0": 0.2}), "'0' is no IPU"),
        (lambda o: o.setAvailableMemoryProportion({"IPU0": 1.5}), "at most 1, not 1.5"),
        (lambda o: o.target("mk9"), "known: mk1, mk2, c600, bow"),
        (lambda o: o.TensorLocations.numIOTiles(33), "even number between 32 and 192"),
        (lambda o: o._Popart.setPatterns(["InPlace"]), "_Popart.setPatterns takes a dict"),
        (
            lambda o: setattr(o, "deviceIterations", 3),
            "is a method, not a value: call deviceIterations(3)",
        ),
        (lambda o: setattr(o, "replication_factor", "3"), "takes a value of type int, not '3'"),
        (
            lambda o: o._Popart.set("defaultPrefetchBufferingDepth", 0),
            "_Popart.set('defaultPrefetchBufferingDepth', ...)",
        ),
        (lambda o: o.TensorLocations.setOptimizerLocation(False), "TensorLocationSettings"),
        (lambda o: o.Precision.setPartialsType(torch.int32), "torch.float or torch.half"),
        (lambda o: o.Distributed.configureProcessId(2, 2), "process 2 of 2 does not exist"),
        (lambda o: setattr(o, "autoreport", "yes"), "True or False"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_is_taken(set_it: object, says: str) -> None:
    with pytest.raises(Error) as raised:
        set_it(Options())  # type: ignore[operator]
    assert says in str(raised.value)


def test_an_unknown_option_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'device_iteration'"):
        _ = Options().device_iteration
    with pytest.raises(AttributeError, match="did you mean 'device_iterations'"):
        Options().device_iteration = 3
    with pytest.raises(AttributeError, match=r"it is Training\.gradientAccumulation"):
        Options().gradientAccumulation(2)
    with pytest.raises(AttributeError, match=r"it is options\.deviceIterations"):
        Options().Training.deviceIterations(2)


def test_an_option_that_is_assigned_is_the_options_value() -> None:
    options = Options()
    options.replication_factor, options.Training.gradient_accumulation = 4, 3
    assert (options.toDict()["replication_factor"], options.clone().batch_factor) == (4, 12)
    assert vars(options).keys() == vars(Options()).keys()


def test_memory_proportions_are_kept_by_ipu() -> None:
    assert Options().setAvailableMemoryProportion(
        {"IPU0": 0.2, "IPU3": 1}
    ).available_memory_proportion == {
        0: 0.2,
        3: 1.0,
    }


def test_optimiser_state_off_chip() -> None:
    options = Options()
    assert not options.TensorLocations.location_optimizer.off_chip
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False)
    )
    assert options.TensorLocations.location_optimizer.off_chip
    assert not options.TensorLocations.location_weight.off_chip
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False).useOnChipStorage(None)
    assert settings.on_chip_storage is None and not settings.off_chip
    with pytest.raises(poptorch.Error, match="useOnChipStorage takes True or False"):
        settings.useOnChipStorage(0)


def test_offline_target_picks_a_machine_and_never_attaches() -> None:
    options = Options().useOfflineIpuTarget(1)
    assert (options.target_name, options.connection_type) == ("mk1", poptorch.ConnectionType.Never)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: Options(autoreport=True, autoreport_dir="demo"),
        lambda: Options().enableProfiling("demo"),
        lambda: _by_properties(Options()),
        lambda: _by_training(Options()),
        lambda: _by_popart(Options()),
    ],
)
def test_a_profile_can_be_asked_for_in_five_ways(ask: object) -> None:
    wanted = ask().profiling()  # type: ignore[operator]
    assert (wanted.enabled, wanted.directory, wanted.execution, wanted.run_count) == (
        True,
        Path("demo"),
        True,
        2,
    )


def _by_properties(options: Options) -> Options:
    options.autoreport = True
    options.autoreport_dir = "demo"
    return options


def _by_training(options: Options) -> Options:
    options.Training.autoreport = True
    options.Training.autoreport_dir = "demo"
    assert options.autoreport
    assert options.Training.autoreport_dir == "demo"
    return options


def _by_popart(options: Options) -> Options:
    options._Popart.set("engineOptions", {"autoReport.all": "true", "autoReport.directory": "demo"})
    return options


def test_no_profile_unless_asked() -> None:
    assert not Options().profiling().enabled
    assert not Options(autoreport_dir="demo").profiling().enabled


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = {
        "autoReport.directory": "elsewhere",
        "autoReport.executionProfileProgramRunCount": "5",
    }
    monkeypatch.setenv(ENGINE, json.dumps(engine))
    wanted = Options().enableProfiling("demo").profiling()
    assert (wanted.enabled, wanted.directory, wanted.run_count) == (True, Path("elsewhere"), 5)
    monkeypatch.setenv(ENGINE, json.dumps({"autoReport.all": "false"}))
    assert not Options().enableProfiling("demo").profiling().enabled


def test_the_environment_alone_asks_for_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        ENGINE, '{"autoReport.all": "true", "autoReport.outputExecutionProfile": "false"}'
    )
    wanted = Options().profiling()
    assert (wanted.enabled, wanted.execution) == (True, False)
    monkeypatch.setenv(ENGINE, '{"autoReport.outputExecutionProfile": true}')
    assert Options().profiling().execution


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{autoReport.all: true}", "not JSON"),
        ('["autoReport.all"]', "JSON object"),
        ('{"autoReport.all": "maybe"}', "'maybe'"),
        ('{"autoReport.executionProfileProgramRunCount": "-1"}', "whole number of runs"),
    ],
)
def test_nonsense_in_the_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, value: str, says: str
) -> None:
    monkeypatch.setenv(ENGINE, value)
    with pytest.raises(Error, match=says):
        Options().profiling()


def test_names_that_do_not_exist_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match=r"pattern of PopART 'TiedGathr', .* mean 'TiedGather'\?"):
        Options()._Popart.setPatterns({"TiedGathr": True, "PadSum": False})
    monkeypatch.setenv(ENGINE, '{"autoReport.al": "true", "opt.someOther": "true"}')
    with pytest.warns(UserWarning, match=r"'autoReport.al', .* did you mean 'autoReport.all'\?"):
        Options().profiling()


def test_options_in_use_cannot_be_changed_but_a_clone_can() -> None:
    options = Options().deviceIterations(2)
    poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    for change in (
        lambda: options.deviceIterations(3),
        lambda: options.Training.gradientAccumulation(3),
        lambda: options.TensorLocations.location_weight.useOnChipStorage(False),
        lambda: options._Popart.set("autoRecomputation", 3),
        lambda: setattr(options, "autoreport", True),
    ):
        with pytest.raises(Error, match=r"options\.clone\(\)"):
            change()
    copy = options.clone()
    copy.deviceIterations(3).Training.gradientAccumulation(4)
    copy.Training.autoreport = True
    assert (copy.device_iterations, copy.Training.gradient_accumulation, copy.autoreport) == (
        3,
        4,
        True,
    )
    assert (
        options.device_iterations,
        options.Training.gradient_accumulation,
        options.autoreport,
    ) == (2, 1, False)


def test_flat_names_every_option_and_is_json() -> None:
    options = (
        Options().setAvailableMemoryProportion({"IPU1": 0.3}).outputMode(poptorch.OutputMode.All)
    )
    options.Training.gradientAccumulation(8)
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage("B1").ipu(0), "B2"))
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False)
    )
    flat = json.loads(json.dumps(options.flat()))
    assert flat["Training.gradientAccumulation"] == 8
    assert flat["outputMode"] == "All"
    assert flat["executionStrategy"] == "ShardedExecution(Stage('B1').ipu(0), Stage('B2'))"
    assert flat["availableMemoryProportion"] == {"1": 0.3}
    assert flat["TensorLocations.locationOptimizer.onChipStorage"] is False
    named = json.loads(json.dumps(options.toDict()))
    assert flat.items() <= named.items()
    assert (named["replication_factor"], named["gradient_accumulation"], named["output_mode"]) == (
        1,
        8,
        2,
    )


def test_options_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "options.conf"
    path.write_text(
        "# a comment\n"
        "deviceIterations(4)\n"
        "Training.gradientAccumulation(8)  # deep\n"
        "outputMode(poptorch.OutputMode.EveryN, output_return_period=2)\n"
        "Precision.setPartialsType(torch.half)\n"
        'setAvailableMemoryProportion({"IPU0": 0.2})\n'
    )
    options = Options().loadFromFile(path)
    assert (options.device_iterations, options.Training.gradient_accumulation) == (4, 8)
    assert (options.output_mode, options.output_return_period) == (poptorch.OutputMode.EveryN, 2)
    assert options.Precision.partials_type == "float16"


@pytest.mark.parametrize(
    "line",
    [
        *("deviceIterations", "noSuchOption(1)", "deviceIterations(0)", "randomSeed(open('x'))"),
        *("[" * 100_000, "clone.__func__.__globals__.clear()", "outputMode(OutputMode.No)"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "options.conf"
    path.write_text(f"replicationFactor(2)\n{line}\n")
    with pytest.raises(Error, match=r"line 2 of options\.conf"):
        Options().loadFromFile(path)


@pytest.mark.parametrize(
    ("change", "option"),
    [
        (
            lambda o: o._Popart.set("groupNormStridedChannelGrouping", True),
            "_Popart's groupNormStridedChannelGrouping",
        ),
    ],
)
def test_a_setting_that_is_not_honoured_says_so(change: Any, option: str) -> None:
    with pytest.warns(
        UserWarning, match=f"{option} is recorded in the profile, but not honoured: "
    ):
        change(Options())


@pytest.mark.parametrize("where", ["options", "environment"])
def test_an_engine_option_that_is_not_honoured_says_so(where: str) -> None:
    warn_once.cache_clear()
    options, name = Options(), "opt.internalExchangeOptimisationTarget"
    environment = {}
    if where == "options":
        options._Popart.set("engineOptions", {name: "memory"})
    else:
        environment = {"POPLAR_ENGINE_OPTIONS": json.dumps({name: "memory"})}
    with pytest.warns(UserWarning, match=f"{name} is recorded in the profile, but not honoured: "):
        options.profiling(environment)


def test_a_setting_left_as_it_is_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    options = Options().syncPattern(poptorch.SyncPattern.Full).broadcastBuffers(False)
    poptorch.TensorLocationSettings().useReplicatedTensorSharding(False)
    options.Precision.enableFloatingPointExceptions(False)
    options._Popart.set("groupNormStridedChannelGrouping", False)
    options._Popart.set("engineOptions", {"opt.internalExchangeOptimisationTarget": "cycles"})
    options.profiling({})
    assert not recwarn.list


# -- options as PopTorch's own tests use them ---


def test_a_copy_of_options_in_use_can_be_changed() -> None:
    options = poptorch.Options().deviceIterations(2)
    poptorch.inferenceModel(torch.nn.Linear(1, 1), options)
    with pytest.raises(AttributeError, match="frozen Options"):
        options.deviceIterations(3)
    copied = copy.deepcopy(options)
    assert copied.deviceIterations(3).device_iterations == 3
    copied.Training.gradientAccumulation(5)
    assert options.Training.gradient_accumulation == 1


def test_a_wrapped_model_says_its_output_mode() -> None:
    model = torch.nn.Linear(1, 1)
    options = poptorch.Options()
    training = poptorch.trainingModel(model, options)
    inference = poptorch.inferenceModel(model, options)
    assert options.defaultOutputMode()
    assert training.options.output_mode is poptorch.OutputMode.Final
    assert inference.options.output_mode is poptorch.OutputMode.All


def test_a_model_name_names_the_folder_of_the_report(tmp_path: Path) -> None:
    options = poptorch.Options().enableProfiling(tmp_path).modelName("mine")
    poptorch.inferenceModel(torch.nn.Linear(2, 2), options).compile(torch.ones(1, 2))
    assert (tmp_path / "mine" / "profile.pop").exists()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"deviceIterations": 2}, lambda o: o.deviceIterations(2)),
        (
            {"Precision.enableFloatingPointExceptions": True},
            lambda o: o.Precision.enableFloatingPointExceptions(True),
        ),
        (
            {"connectionType": "ConnectionType.OnDemand"},
            lambda o: o.connectionType(poptorch.ConnectionType.OnDemand),
        ),
        ({"_Popart.set": ["cachePath", "a.b"]}, lambda o: o._Popart.set("cachePath", "a.b")),
    ],
)
def test_the_environment_gives_defaults(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], wanted: Any
) -> None:
    expected = poptorch.Options()
    plain = repr(expected)
    wanted(expected)
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", json.dumps(given))
    assert repr(poptorch.Options()) == repr(expected) != plain


def test_a_file_of_options_may_call_poptorchs_constructors(tmp_path: Path) -> None:
    file = tmp_path / "mine.conf"
    file.write_text(
        "setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage('a').ipu(1)))  # here\n"
        "TensorLocations.setWeightLocation(\n".rstrip("(\n")
        + "(poptorch.TensorLocationSettings().useOnChipStorage(False))\n"
    )
    options = poptorch.Options().loadFromFile(file)
    assert repr(options.execution_strategy) == "ShardedExecution(Stage('a').ipu(1))"
    assert options.TensorLocations.location_weight["onChip"] == 0
    file.write_text("deviceIterations(1)\n\noutputMode(poptorch.OutputMode.All\n")
    with pytest.raises(
        poptorch.options.ConfigFileError, match=r"SyntaxError at line 3 of mine\.conf"
    ):
        poptorch.Options().loadFromFile(file)
    file.write_text("setExecutionStrategy(os.system('true'))\n")
    with pytest.raises(poptorch.options.ConfigFileError, match=r"line 1 of mine\.conf"):
        poptorch.Options().loadFromFile(file)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("asdf", True, "Unknown bool option asdf"),
        ("asdf", 1.5, "Unknown floating point option asdf"),
        ("dotChecks", object(), "Unknown value type object for option dotChecks"),
    ],
)
def test_settings_that_popart_does_not_have_are_refused(name: str, value: Any, says: str) -> None:
    options = poptorch.Options()
    options._Popart.set(name, value)
    with pytest.raises(poptorch.Error, match=says):
        poptorch.poptorch_core._validateOptions(options.toDict())
    with pytest.raises(poptorch.Error, match=says):
        poptorch.inferenceModel(torch.nn.Linear(1, 1), options).compile(torch.ones(1, 1))


def test_popart_sets_what_precision_sets() -> None:
    options = poptorch.Options()
    options._Popart.set("enableStochasticRounding", True)
    copied = options.clone()
    copied._Popart.set("enableStochasticRounding", False)
    assert (options.Precision.stochastic_rounding, copied.Precision.stochastic_rounding) == (1, 0)


@pytest.mark.parametrize(
    ("settings", "halved"),
    [
        ({}, []),
        ({"partialsTypeMatMuls": "half"}, ["matmul"]),
        ({"convolutionOptions": {"partialsType": "half"}}, ["convolution"]),
        ({"matmulOptions": {"partialsType": "half"}, "partialsTypeMatMuls": "float"}, ["matmul"]),
    ],
)
def test_popart_sets_partials_by_the_kind_of_operator(settings: Any, halved: list[str]) -> None:
    options = poptorch.Options()
    for name, value in settings.items():
        options._Popart.set(name, value)
    (machine,) = machines_of(compile_options(options, False, 2, {}), 1)
    kinds = ("convolution", "matmul")
    assert [kind for kind in kinds if machine.loading(kind).partials == "float16"] == halved
    options.Precision.setPartialsType(torch.float)
    (machine,) = machines_of(compile_options(options, False, 2, {}), 1)
    assert {machine.loading(kind).partials for kind in kinds} == {"float32"}


def test_the_log_says_options_in_poptorchs_words(caplog: pytest.LogCaptureFixture) -> None:
    options = poptorch.Options().deviceIterations(3).enableSyntheticData(True)
    options.setExecutionStrategy(poptorch.ShardedExecution())
    options._Popart.set("dotChecks", ["FINAL"])
    options._Popart.set("reportOptions", {"a": "b"})
    options.TensorLocations.setWeightLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False)
    )
    caplog.set_level("DEBUG", logger="ipu_exec")
    poptorch.inferenceModel(torch.nn.Linear(1, 1), options).compile(torch.ones(3, 1))
    said = [record.getMessage() for record in caplog.records]
    for line in (
        "poptorch.Options set device_iterations to value 3",
        "poptorch.Options set execution_mode to value 1",
        "poptorch.Options set syntheticDataMode to value 2",
        "poptorch.Options set auto_round_num_ipus to value false",
        "poptorch.Options added FINAL to dotChecks",
        "poptorch.Options set reportOptions[a] to b",
        "Setting onChip to 0 for location location_weight",
    ):
        assert line in said


def test_names_of_poptorchs_own_modules() -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(2, 5)
    assert options.Distributed.distributed_process_id == 2
    assert options.Distributed.num_distributed_processes == 5
    assert isinstance(options.Distributed, poptorch.options._DistributedOptions)
    assert poptorch.options.ShardedExecution is poptorch.ShardedExecution
    options._Popart.set("autoRecomputation", 2)
    assert options._Popart.options["autoRecomputation"] == 2
