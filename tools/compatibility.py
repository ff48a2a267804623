"""Writes docs/compatibility.md: every name of PopTorch, and what becomes of it here.

Run ``python -m tools.compatibility > docs/compatibility.md``. The table below says how a name
behaves; whether it is there is looked up, and what a setting that is not honoured does instead
comes from where the warning comes from.

``python -m tools.compatibility --check CHECKOUT OUTCOMES > tools/poptorch_checked.txt`` holds the
names against what came of PopTorch's own tests (`tools.poptorch_suite`), and names on stderr those
that are said to be here and whose tests fail more often than not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ipu_exec
from ipu_exec import optim
from ipu_exec.base.replica_groups import GroupedParameter
from ipu_exec.optim import VariableAttributes
from ipu_exec.option_groups.group import NOT_HONOURED
from ipu_exec.session.executor import PoplarExecutor
from tools.poptorch_suite import outcomes, sources
from tools.poptorch_suite.__main__ import INTERNALS, test_files

CHECKED = Path(__file__).parent / "poptorch_checked.txt"

SAME, PROFILE = "same", "same + profile"
ACCEPTED, ABSENT = "accepted, no effect here", "not there"
STATUSES = {
    SAME: "does what it does in PopTorch",
    PROFILE: "the same, and the profile shows it: placement, cycles, memory or a name",
    ACCEPTED: (
        "taken and checked, so that scripts run; where a number could depend on it, a warning says"
        " so once"
    ),
    ABSENT: "an AttributeError",
}


@dataclass(frozen=True)
class Group:
    """Names that are attributes of ``owner``.

    An entry is a status, or a status and what is to be said of it.
    """

    title: str
    prefix: str
    owner: Any
    names: dict[str, str | tuple[str, str]]


_options = ipu_exec.Options()
_STATES = (
    "states and accumulators have the dtypes it names, in memory, and in numbers that are rounded"
    " to them; float16 weights are updated in float32"
)
_ON_IPU = "there is no device to attach to; the state is kept"

GROUPS = (
    Group(
        "Models",
        "",
        ipu_exec,
        {
            "trainingModel": PROFILE,
            "registerPreCompileHook": SAME,
            "registerPostCompileHook": SAME,
            "importPoptorchMetadataFromFile": (SAME, "the file is IPUscope's own"),
            "inferenceModel": PROFILE,
            "PoplarExecutor": PROFILE,
            "load": (SAME, "the file is IPUscope's own; its model is unpickled, with a warning"),
            "DataLoader": SAME,
            "AsynchronousDataAccessor": SAME,
            "ICustomArgParser": SAME,
            "registerCustomArgParser": SAME,
            "isRunningOnIpu": SAME,
            "ipuHardwareIsAvailable": (SAME, "True: the modelled machine stands for it"),
            "ipuHardwareVersion": (
                SAME,
                "of the modelled machine: 2; 1 with `ipu-run --target mk1`",
            ),
            "hasMLIRSupportOnPlatform": (SAME, "True: models are captured by running them"),
            "setLogLevel": SAME,
            "Error": SAME,
            "RecoverableError": (SAME, "never raised: no device fails"),
            "UnrecoverableError": (SAME, "never raised: no device fails"),
            "poptorch_core": (ACCEPTED, "the name only: PopTorch's compiled core is not here"),
            "testing": SAME,
            "profiling": (
                SAME,
                "a trace that Perfetto opens rather than one for PopVision's system analyser",
            ),
            "Attribute": (
                PROFILE,
                "__outline keeps code apart; others are kept with the operators",
            ),
            "distributed": (
                ACCEPTED,
                "VirtualIpuManager.isAvailable is False: there are no partitions to make",
            ),
        },
    ),
    Group(
        "Placement",
        "",
        ipu_exec,
        {
            "BeginBlock": PROFILE,
            "Block": PROFILE,
            "BlockFunction": PROFILE,
            "removeBlocks": SAME,
            "module_repr": SAME,
            "Stage": PROFILE,
            "Phase": PROFILE,
            "AutoStage": PROFILE,
            "PipelinedExecution": PROFILE,
            "ShardedExecution": PROFILE,
            "SerialPhasedExecution": (
                PROFILE,
                "weights move with their phase unless setWeightLocation keeps them",
            ),
            "ParallelPhasedExecution": (
                PROFILE,
                "weights move with their phase unless setWeightLocation keeps them",
            ),
            "Liveness": (
                PROFILE,
                "OffChipAfterFwdNoOverlap is as OffChipAfterFwd: serial phases never overlap",
            ),
            "NameScope": PROFILE,
        },
    ),
    Group(
        "Operators",
        "",
        ipu_exec,
        {
            "identity_loss": SAME,
            "recomputationCheckpoint": PROFILE,
            "custom_op": (
                PROFILE,
                "what it computes and costs is given to register_custom_op, not found in a library",
            ),
            "serializedMatMul": PROFILE,
            "MultiConv": (PROFILE, "tiles are shared out as poplin does"),
            "nop": SAME,
            "for_loop": (PROFILE, "the profile has the body once for each time"),
            "cond": (PROFILE, "one body is run, the profile has both"),
            "dynamic_slice": PROFILE,
            "dynamic_update": PROFILE,
            "set_available_memory": (
                PROFILE,
                "of products and their gradients; gathers and scatters cost what they did",
            ),
            "set_overlap_for_input": (
                PROFILE,
                "a pipeline overlaps with _Popart.set('enableExplicitIR', True), too",
            ),
            "set_overlap_for_output": (
                PROFILE,
                "what leaves once a device iteration (OutputMode.Sum) is not overlapped",
            ),
            "ipu_print_tensor": (SAME, "printing costs nothing in the profile"),
            "ctc_beam_search_decoder": (PROFILE, "its cycles are an estimate"),
            "fps": (PROFILE, "its cycles are an estimate"),
            "nearest": (PROFILE, "its cycles are an estimate"),
            "CPU": (PROFILE, "the way to the host and back, not the host's own time"),
        },
    ),
    Group(
        "Options",
        "Options.",
        _options,
        {
            "deviceIterations": PROFILE,
            "replicationFactor": PROFILE,
            "inputReplicaGrouping": SAME,
            "outputMode": PROFILE,
            "anchorMode": PROFILE,
            "defaultOutputMode": SAME,
            "setExecutionStrategy": PROFILE,
            "autoRoundNumIPUs": PROFILE,
            "setAvailableMemoryProportion": PROFILE,
            "randomSeed": SAME,
            "enableExecutableCaching": (SAME, "POPTORCH_CACHE_DIR too"),
            "anchorTensor": (
                SAME,
                (
                    "names are those of getTensorNames, and PopTorch's of gradients and updated"
                    " weights"
                ),
            ),
            "enableProfiling": (PROFILE, "profile.pop of IPUscope; POPLAR_ENGINE_OPTIONS too"),
            "useOfflineIpuTarget": PROFILE,
            "connectionType": (SAME, "Never compiles and does not run; the other two are alike"),
            "modelName": PROFILE,
            "logCycleCount": (SAME, "modelled cycles"),
            "showCompilationProgressBar": SAME,
            "relaxOptimizerAttributesChecks": SAME,
            "loadFromFile": SAME,
            "from_json": SAME,
            "toDict": (SAME, "by PopTorch's names, and by dotted names"),
            "clone": SAME,
            "enableSyntheticData": (
                PROFILE,
                "no host I/O is modelled; numbers are those of the data that is given",
            ),
            "enableStableNorm": (
                PROFILE,
                "cycles and memory; numbers are PyTorch's, stable either way",
            ),
            "broadcastBuffers": (
                SAME,
                "with True, a model that writes a buffer on several replicas is an Error",
            ),
            "syncPattern": (
                PROFILE,
                "which IPUs wait for the host together; in phased execution all do",
            ),
            "updatableNamedBuffers": SAME,
            "useIpuModel": (
                PROFILE,
                "products take the cycles that the vendor's IPUModel estimates;"
                " POPTORCH_IPU_MODEL too",
            ),
            "useIpuId": (SAME, "one model of the process has the device at a time"),
            "logDir": (ACCEPTED, "nothing is written there"),
            "maxRepeatLogs": (ACCEPTED, "nothing is repeated"),
            "sourceLocationExcludes": (
                ACCEPTED,
                "the profile names the user's own line of an operator",
            ),
            "appendToLocationExcludes": (
                ACCEPTED,
                "the profile names the user's own line of an operator",
            ),
            "disableModuleNamescope": (ACCEPTED, "operators keep their module's path"),
        },
    ),
    Group(
        "Options.Training",
        "Options.Training.",
        _options.Training,
        {
            "gradientAccumulation": PROFILE,
            "accumulationAndReplicationReductionType": SAME,
            "setMeanAccumulationAndReplicationReductionStrategy": SAME,
            "setAutomaticLossScaling": (SAME, "the counting is not in the profile"),
            "setConvolutionDithering": (PROFILE, "which tiles; a convolution takes as long"),
        },
    ),
    Group(
        "Options.Precision",
        "Options.Precision.",
        _options.Precision,
        {
            "setPartialsType": (
                PROFILE,
                "cycles and memory; numbers are PyTorch's; torch.float where unset",
            ),
            "enableStochasticRounding": (SAME, "of float16 weights at their update"),
            "enableFloatingPointExceptions": (
                SAME,
                "an Error that names the operator, as it is called in the profile",
            ),
            "runningStatisticsAlwaysFloat": (
                PROFILE,
                "casts; memory counts the buffers as the model has them",
            ),
            "halfFloatCasting": (
                PROFILE,
                "FloatDowncastToHalf only where it is set, as in PopTorch since 3.0",
            ),
        },
    ),
    Group(
        "Options.TensorLocations",
        "Options.TensorLocations.",
        _options.TensorLocations,
        {
            "setOptimizerLocation": PROFILE,
            "setWeightLocation": (
                PROFILE,
                "weights that stages share stay whole on the chip (it warns)",
            ),
            "setActivationLocation": (PROFILE, "a pipeline keeps its stash on the chip (it warns)"),
            "setAccumulatorLocation": PROFILE,
            "numIOTiles": (
                PROFILE,
                "the last tiles of each IPU; which ones GCL takes is not public",
            ),
        },
    ),
    Group(
        "TensorLocationSettings",
        "TensorLocationSettings.",
        ipu_exec.TensorLocationSettings(),
        {
            "useOnChipStorage": PROFILE,
            "useReplicatedTensorSharding": (
                PROFILE,
                "where the optimiser is elementwise and norms (else it warns)",
            ),
            "minElementsForOffChip": (PROFILE, "2 by default, as in PopART"),
            "minElementsForReplicatedTensorSharding": (PROFILE, "8,192 by default, as in PopART"),
            "useIOTilesToLoad": (
                PROFILE,
                "with phases that are pipelines, beside computing (elsewhere it warns)",
            ),
            "useIOTilesToStore": (PROFILE, "as useIOTilesToLoad"),
        },
    ),
    Group(
        "Options.Distributed",
        "Options.Distributed.",
        _options.Distributed,
        {
            "configureProcessId": (
                SAME,
                "as instances (docs/instances.md); MASTER_ADDR and MASTER_PORT say where they meet",
            ),
            "setEnvVarNames": SAME,
            "disable": SAME,
            "processId": SAME,
            "numProcesses": SAME,
        },
    ),
    Group(
        "Other groups of Options",
        "Options.",
        _options,
        {
            "_Popart": (
                ACCEPTED,
                (
                    "recorded; obeyed are engineOptions' autoReport.*, autoRecomputation, two"
                    " patterns (setPatterns), defaultBufferingDepth, enablePrefetchDatastreams,"
                    " enableExplicitIR, enableStochasticRounding, enableFloatingPointChecks and"
                    " types of partials (partialsTypeMatMuls, convolutionOptions, matmulOptions);"
                    " the engine option opt.internalExchangeOptimisationTarget warns;"
                    " groupNormStridedChannelGrouping warns: groups are of neighbouring channels,"
                    " as PyTorch has them, and cost what those cost"
                ),
            ),
            "Jit": (ACCEPTED, "models are captured by running them"),
        },
    ),
    Group(
        "Executor",
        "PoplarExecutor.",
        PoplarExecutor,
        {
            "__call__": PROFILE,
            "compile": PROFILE,
            "setOptimizer": SAME,
            "state_dict": SAME,
            "load_state_dict": SAME,
            "destroy": SAME,
            "save": (SAME, "the file is IPUscope's own"),
            "compileAndExport": (SAME, "the file is IPUscope's own"),
            "loadExecutable": (SAME, "nothing in it can run code"),
            "getAnchoredTensor": SAME,
            "getTensorNames": SAME,
            "getLatency": (SAME, "on the modelled clock"),
            "getComputeLatency": (SAME, "on the modelled clock"),
            "getHostIpuLatency": (SAME, "on the modelled clock"),
            "getIpuHostLatency": (SAME, "on the modelled clock"),
            "getPerfCounters": (SAME, "on the modelled clock"),
            "cycleCount": (SAME, "as modelled; with `logCycleCount(True)`, once the model ran"),
            "compilationTime": SAME,
            "rng_state": (SAME, "of PyTorch's generator, or of the device's own after randomSeed"),
            "isCompiled": SAME,
            "isAttachedToDevice": (SAME, _ON_IPU),
            "attachToDevice": (SAME, _ON_IPU),
            "detachFromDevice": (SAME, _ON_IPU),
            "copyWeightsToHost": SAME,
            "copyWeightsToHostIfNeeded": SAME,
            "copyWeightsToDevice": (
                SAME,
                "but trained weights that the host has not asked for are kept, with a warning",
            ),
            "copyNamedBuffersToDevice": SAME,
            "model": SAME,
            "options": SAME,
        },
    ),
    Group(
        "Weights of a wrapped model",
        "model.weight.",
        GroupedParameter,
        {
            "replicaGrouping": (PROFILE, "not with LAMB or max_grad_norm: an error says so"),
        },
    ),
    Group(
        "Optimisers",
        "optim.",
        optim,
        {
            "SGD": (
                PROFILE,
                (
                    f"{_STATES}; with use_combined_accum one tensor holds gradients and velocity,"
                    " in memory"
                ),
            ),
            "Adam": (PROFILE, _STATES),
            "AdamW": (PROFILE, _STATES),
            "RMSprop": (PROFILE, f"{_STATES}; use_tf_variant too"),
            "LAMB": (PROFILE, _STATES),
            "Optimizer": (SAME, "what the others have in common"),
            "VariableAttributes": (SAME, "what was marked as constant cannot change once compiled"),
        },
    ),
    Group(
        "VariableAttributes",
        "VariableAttributes.",
        VariableAttributes,
        {
            "isConstant": SAME,
            "markAsConstant": SAME,
            "markAsVariable": SAME,
        },
    ),
    Group(
        "Enumerations",
        "",
        ipu_exec,
        {
            "OutputMode": SAME,
            "AnchorMode": SAME,
            "ReductionType": SAME,
            "MeanReductionStrategy": SAME,
            "DataLoaderMode": SAME,
            "SharingStrategy": (
                SAME,
                "SharedMemory and FileSystem fork a clean server, as ForkServer",
            ),
            "ConnectionType": SAME,
            "SyncPattern": PROFILE,
            "MatMulSerializationMode": SAME,
            "OverlapMode": PROFILE,
            "MultiConvPlanType": PROFILE,
            "CommGroupType": SAME,
            "VariableRetrievalMode": SAME,
            "HalfFloatCastingBehavior": SAME,
            "TensorLocationSettings": SAME,
            "Options": SAME,
            "enums": SAME,
            "optim": SAME,
        },
    ),
)

_OWN = {
    ipu_exec: ("ipu_exec.", "IPUscope's own names"),
    ipu_exec.Options: ("Options.", ""),
    PoplarExecutor: ("PoplarExecutor.", ""),
}


# (what, how it was run, what came of it) on 2026-11-22
RAN = (
    (
        "poptorch_geometric (graphcore/poptorch)",
        "its tests, tests/gnn, with pyg-nightly 2.4.0.dev20230613, torch_scatter 2.1.2,"
        " torch_cluster"
        " 1.6.3 and torch_spline_conv 1.2.2, built from the package index",
        "by file in [its suite](poptorch-suite.md); those that need QM9, Planetoid, METIS or"
        " torch-sparse could not run",
    ),
    (
        "torch_scatter 2.1.2",
        "tests/pyg_torch_scatter_test.py of graphcore/poptorch",
        "21 of 23 pass; the two others read PopTorch's compiler in its log",
    ),
    (
        "torchmetrics 1.9",
        "in a forward and in Lightning (tests/ipu_exec)",
        "metrics compile, and count each call once",
    ),
    ("PyTorch Lightning 2.6", "tests/ipu_exec/lightning", "[its page](lightning.md)"),
    (
        "PopTorch's examples: simple_adder.py, lstm.py",
        "`ipu-run`",
        "both run; mnist.py and bert_ipu.py need downloads",
    ),
    (
        "PopTorch's user guide: debugging.py, phased_execution.py, poptorch_training_simple.py,"
        " precompilation.py, replica_grouped_weights.py, sumAnchorReturnType.py, trainingModel.py",
        "`ipu-run`",
        "all seven run; device_iterations.py ran beyond 90 s and was ended, error_handling.py asks"
        " the C++ core for errors, api.py needs a file of its build, inferenceModel.py and"
        " pipeline_simple.py torchvision's compiled part",
    ),
    (
        "PopTorch's user guide: buffers.py",
        "`ipu-run`",
        "its first half differs: a tensor that is no buffer is counted up at each call, by PopTorch"
        " once, when it compiles",
    ),
    (
        "graphcore/examples: all applications, tutorials and simple applications in PyTorch",
        "`ipu-run --compile-only`, transformers 4.28.1",
        "[one by one](graphcore-examples.md)",
    ),
    (
        "optimum-graphcore (transformers 4.29.2, optimum 1.6.1): BertForMaskedLM,"
        " -SequenceClassification, -QuestionAnswering, Roberta, DistilBert, DebertaForMaskedLM,"
        " GPT2LMHeadModel, Bart, T5, ViT, ConvNext, Wav2Vec2ForCTC, Whisper",
        "a script under `ipu-run`: `to_pipelined`, `parallelize`, `IPUConfig.to_options`,"
        " `trainingModel`, compile; 4 small layers with random weights on 4 IPUs",
        "all 13 compile; DebertaForSequenceClassification is refused, since transformers itself"
        " calls nonzero in its loss. Its own tests download models",
    ),
)


def classify(group: Group, name: str) -> tuple[str, str]:
    """Status and reason of a name.

    Raises ValueError if a name exists that should not, or the other way round.
    """
    entry = group.names[name]
    status, reason = (entry, "") if isinstance(entry, str) else entry
    exists = hasattr(group.owner, name)
    if exists != (status != ABSENT):
        raise ValueError(
            f"{group.prefix}{name} is {'there' if exists else 'not there'}, but the table says"
            f" {status!r}"
        )
    warned = dict(NOT_HONOURED.values())
    instead = warned.get(
        f"{group.prefix}{name}".removeprefix("Options.").removeprefix("TensorLocationSettings.")
    )
    if instead is not None:
        if status != ACCEPTED:
            raise ValueError(
                f"{group.prefix}{name} warns that it is not honoured, but the table says {status!r}"
            )
        reason = f"{instead} (it warns)"
    return status, reason


def own_names() -> dict[str, list[str]]:
    """Public names that exist here and not in PopTorch, with their places."""
    owners = {}
    for owner, (prefix, _) in _OWN.items():
        theirs = {name for group in GROUPS for name in group.names if _is(group.owner, owner)}
        names = (
            ipu_exec.__all__
            if owner is ipu_exec
            else [name for name in _of_class(owner) if not name.startswith("_")]
        )
        owners[prefix] = sorted(set(names) - theirs)
    return owners


def _of_class(owner: type) -> list[str]:
    """Names that a class defines, with those of the classes that the executor is made of."""
    parts = [kind for kind in owner.__mro__ if kind.__module__.startswith("ipu_exec.session.")]
    return [name for kind in parts or [owner] for name in vars(kind)]


def theirs() -> list[str]:
    """Names of PopTorch's surface, as `tools.poptorch_names` reads them off its sources."""
    return (Path(__file__).parent / "poptorch_names.txt").read_text().split()


def resolves(name: str) -> bool:
    """Whether ``poptorch.name`` is there; what belongs to `Options` is looked for on an object."""
    first, *rest = name.split(".")
    value: Any = _options if first == "Options" else getattr(ipu_exec, first, None)
    for part in rest:
        value = getattr(value, part, None)
    return value is not None


def check(checkout: Path, outcomes_file: Path) -> dict[str, tuple[int, int]]:
    """How many of PopTorch's tests pass that use a name, and how many fail, by name.

    Tests that need what only the compiled PopTorch has are not counted, nor names without tests.
    """
    suite = checkout / "tests"
    tests = sources.read(suite, test_files(suite))
    known = outcomes.reasons(INTERNALS)
    ran = sources.by_function(outcomes.read(outcomes_file), known)
    counts = {}
    for group in GROUPS:
        for name in group.names:
            word = name if group.prefix else f"poptorch.{name}"
            use_it = [ran.get(test.test, Counter()) for test in tests if word in test.attributes]
            total = sum(use_it, Counter())
            if total["passed"] or total["failed"]:
                counts[group.prefix + name] = (total["passed"], total["failed"])
    return counts


def checked() -> dict[str, tuple[int, int]]:
    """The same, as written to tools/poptorch_checked.txt."""
    rows = [line.split() for line in CHECKED.read_text().splitlines()]
    return {name: (int(passed), int(failed)) for name, passed, failed in rows}


def contradicted(counts: dict[str, tuple[int, int]]) -> list[str]:
    """Names that are said to do what they do in PopTorch, and whose tests mostly fail."""
    here = [
        group.prefix + name
        for group in GROUPS
        for name in group.names
        if classify(group, name)[0] in (SAME, PROFILE)
    ]
    return [name for name in here if name in counts and counts[name][1] > counts[name][0]]


def _tests_said(counts: tuple[int, int] | None) -> str:
    if counts is None:
        return ""
    passed, failed = counts
    return f"{passed} of {passed + failed}" if failed else str(passed)


def _is(owner: Any, wanted: Any) -> bool:
    return owner is wanted or type(owner) is wanted


def lines() -> Iterator[str]:
    """The page."""
    yield "# PopTorch's names, here"
    yield ""
    yield (
        "Made by `python -m tools.compatibility > docs/compatibility.md`; a test holds the page"
        " against the code."
    )
    yield ""
    yield "| | means |"
    yield "| --- | --- |"
    for status, meaning in STATUSES.items():
        yield f"| {status} | {meaning} |"
    counts = dict.fromkeys(STATUSES, 0)
    for group in GROUPS:
        for name in group.names:
            counts[classify(group, name)[0]] += 1
    yield ""
    yield (
        "Of the names below "
        + ", ".join(f"{count} are '{status}'" for status, count in counts.items())
        + "."
    )
    yield ""
    yield (
        "The last column says how many of PopTorch's own tests that use the name pass"
        " ([its suite](poptorch-suite.md)), 'p of n' where some fail; made by `python -m"
        " tools.compatibility --check CHECKOUT OUTCOMES > tools/poptorch_checked.txt`."
    )
    said = checked()
    for group in GROUPS:
        yield ""
        yield f"## {group.title}"
        yield ""
        yield "| name | here | | tests |"
        yield "| --- | --- | --- | --- |"
        for name in group.names:
            status, reason = classify(group, name)
            tests = _tests_said(said.get(group.prefix + name))
            yield f"| `{group.prefix}{name}` | {status} | {reason} | {tests} |"
    yield ""
    yield "## Not in PopTorch"
    yield ""
    for prefix, names in own_names().items():
        yield f"- `{prefix}`: " + ", ".join(f"`{name}`" for name in names)
    yield ""
    yield "## Not here"
    yield ""
    yield (
        f"`tools/poptorch_names.txt` has the {len(theirs())} names of PopTorch's surface, read off"
        " its sources by their syntax trees (`python -m tools.poptorch_names CHECKOUT`). Of these"
        " are not here, being parts of its own machinery: "
        + ", ".join(f"`{name}`" for name in theirs() if not resolves(name))
        + ". What its own tests make of the others is in [its suite](poptorch-suite.md)."
    )
    yield ""
    yield "## Libraries and programs of others"
    yield ""
    yield (
        "What was run, unchanged, with IPUscope in PopTorch's place; programs by"
        " `ipu-run PROGRAM`, test suites by `python -m tools.poptorch_suite` or pytest. There"
        " was no"
        " network: data were generated, weights random, Weights & Biases and the loader of"
        " operators compiled from C++ (examples_utils.load_lib) replaced by modules that do"
        " nothing,"
        " and torchvision's compiled operators left out."
    )
    yield ""
    yield "| what | how | what came of it |"
    yield "| --- | --- | --- |"
    for what, how, result in RAN:
        yield f"| {what} | {how} | {result} |"
    yield ""
    yield "## Refused on purpose"
    yield ""
    yield (
        "What PopTorch refuses is refused here too, so that a script that runs here runs there:"
        " amsgrad"
    )
    yield (
        "and maximize, several losses that are not marked as one, `one_hot` without a number of"
        " classes, linear and trilinear upsampling, an operator of tensors on the IPU and of one"
        ' that PopTorch has on the CPU unless `.to("ipu")` moves it (these four pass with'
        " `Options.lenient()`),"
    )
    yield ("inputs of other shapes or dtypes than compiled for, `backward()` on outputs, changes")
    yield (
        "of options in use. Such an error is an `Error`, and also an `AssertionError`, a"
        " `TypeError` and a"
    )
    yield (
        "`ValueError` (a change of options: an `AttributeError`), whichever of them a script"
        " expects."
    )


def page() -> str:
    """The whole page, as a text."""
    return "\n".join(lines()) + "\n"


def main(words: list[str]) -> int:
    """Print the page, or with ``--check`` the counts of tests; 1 if these contradict the table."""
    if words[:1] != ["--check"]:
        sys.stdout.write(page())
        return 0
    counts = check(Path(words[1]), Path(words[2]))
    for name, (passed, failed) in sorted(counts.items()):
        print(name, passed, failed)
    wrong = contradicted(counts)
    for name in wrong:
        print(f"{name} is said to be here, and its tests fail", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
