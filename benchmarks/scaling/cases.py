"""The configurations on the page, and the throughputs published for them.

Published values are medians over the logs of Graphcore's MLPerf v1.1 submission ([MLP],
Graphcore/results): ResNet-50's over all epochs of five runs, 1,281,167 images by the time from an
epoch's start to its stop; BERT's over the training blocks of ten runs, samples of a run by its
blocks, by the median time of a block. BERT trained on packs of 512 tokens with two sequences each
on average, so its values are halved to packs a second.

BERT-Large on Bow is from Graphcore's table of throughputs ([GCP]), which counts sequences too: as
many to a pack as the public configuration says ([EX, nlp/bert/pytorch/configs_pretraining.yml],
packing_factor), by which accumulation is divided there, and the published value here. All rows of
PyTorch's BERT-Large in that table are here, or unpacked in `benchmarks.fidelity`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.fidelity.cases import Row


@dataclass(frozen=True)
class System:
    """A pod, the configuration submitted for it, and its published throughput (samples/s)."""

    pod: str
    ipus: int
    case: str
    published: float | None  # None: not found
    machine: str = "mk2"
    source: str = "MLP v1.1"


RESNET = (
    "ResNet-50 training 224 px; {replicas} replicas of 1 IPU; gradient accumulation {accumulation};"
    " micro-batch 20; LARS; recompute"
)
SPAN = "; batch norm over 2 replicas"  # BN_span of the submission
# Of the public TensorFlow configurations, mk2_resnet50_bn_16ipus and _64ipus.
PIPELINED = (
    "ResNet-50 training 224 px; {replicas} replicas of 4 IPUs; gradient accumulation"
    " {accumulation}; micro-batch 16; residual blocks per IPU 3/4/4/5; proportion 0.15; momentum;"
    " recompute"
)
# The encoder's attentions and feed-forward networks are placed one by one (att_ffn_placement), its
# last ones beside the head on IPU 0; the head's product is in parts
# (embedding_serialization_vocab_steps). Its attention has no dropout (no_attn_dropout), there is no
# head that says if a sentence follows the other (reduce_nsp_overhead), and the norm over all
# gradients is limited (gradient_clipping_norm).
BERT = (
    "BERT-Large pretraining sequence 512; packs of 3; 78 masked; no next sentence; micro-batch 2;"
    " gradient accumulation {accumulation}; {replicas} replicas of {ipus} IPUs;"
    " attention+feed-forward per IPU {halves}; vocabulary 30912; head in 4 parts;"
    " attention dropout 0.0; proportion {proportion}; LAMB; gradient norm limited"
)
STATE = "; optimiser state {where} with replicated tensor sharding"
FOUR = {"ipus": 4, "halves": "1:7+6/2:6+7/3:7+6/0:4+5", "proportion": "0.23"}
EIGHT = {
    "ipus": 8,
    "halves": "1:2+2/2:3+3/3:4+3/4:3+4/5:4+3/6:3+4/7:4+3/0:1+2",
    "proportion": "0.20/0.25",
}
BOW = (
    "BERT-Large pretraining {phase}; gradient accumulation {accumulation}; {replicas} replicas of 4"
    " IPUs; encoder layers per IPU 3/7/7/7; attention dropout 0.0; proportion {proportion}; LAMB"
)
# With packs, masked tokens are more by a token less than the sequences of a pack.
BOW_128 = "sequence 128; packs of 3; 22 masked; micro-batch 8"
BOW_512 = "sequence 512; packs of 3; 78 masked; micro-batch 2"
PACKED = {128: 1.17, 512: 2.0}  # sequences to a pack
OFF, ON = STATE.format(where="off-chip"), STATE.format(where="on-chip")
IN_FP32 = "; first moment in fp32"  # lamb_m_dtype, where a configuration has no other


def _bow(
    pod: str, phase: str, replicas: int, accumulation: int, proportion: str, published: float
) -> System:
    case = BOW.format(
        phase=phase, replicas=replicas, accumulation=accumulation, proportion=proportion
    )
    return System(pod, 4 * replicas, case + OFF, published, "bow", "GCP")


PUBLISHED: dict[str, tuple[System, ...]] = {
    "ResNet-50": (
        System("POD16", 16, RESNET.format(replicas=16, accumulation=10) + SPAN, 29_469),
        System("POD64", 64, RESNET.format(replicas=64, accumulation=3) + SPAN, 108_015),
        System("POD128", 128, RESNET.format(replicas=128, accumulation=2) + SPAN, 178_212),
        System("POD256", 256, RESNET.format(replicas=256, accumulation=2) + SPAN, 325_997),
    ),
    "ResNet-50, pipelines of 4": (
        System("POD16", 16, PIPELINED.format(replicas=4, accumulation=256), None),
        System("POD64", 64, PIPELINED.format(replicas=16, accumulation=64), None),
        System("POD128", 128, PIPELINED.format(replicas=32, accumulation=32), None),
    ),
    "BERT-Large, packs of 512": (
        System("POD16", 16, BERT.format(replicas=4, accumulation=192, **FOUR) + OFF, 762),
        System(
            "POD64", 64, BERT.format(replicas=8, accumulation=96, **EIGHT) + ON + IN_FP32, 2_393
        ),
        System("POD128", 128, BERT.format(replicas=16, accumulation=96, **EIGHT) + ON, 4_555),
    ),
    "BERT-Large on Bow, packs of 128": (
        _bow("POD16", BOW_128, 4, 1752, "0.15/0.25/0.25/0.25", 5_600 / PACKED[128]),
        _bow("POD64", BOW_128, 16, 438, "0.14/0.19/0.19/0.19", 18_442 / PACKED[128]),
    ),
    "BERT-Large on Bow, packs of 512": (
        _bow("POD16", BOW_512, 4, 1024, "0.10/0.15/0.15/0.15", 1_973 / PACKED[512]),
        _bow("POD64", BOW_512, 16, 256, "0.13/0.19/0.19/0.19", 6_543 / PACKED[512]),
    ),
}


def row(system: System) -> Row:
    """The system as a row of `benchmarks.fidelity`, whose builders make the model."""
    unit = "images/s" if system.case.startswith("ResNet") else "sequences/s"
    return Row(
        f"scaling-{system.pod.lower()}",
        "hardware",
        system.machine,
        "fp16",
        system.case,
        "throughput",
        unit,
        system.published or 0,
        system.source,
    )


SWEPT = tuple(1 << k for k in range(9))  # replicas: 1, 2, ... 256


def sweep() -> Iterator[tuple[str, System]]:
    """Each model on 1 to 256 replicas, with everything else as on the smallest pod.

    The global batch grows with the replicas, so any efficiency lost goes to the all-reduce.
    """
    for replicas in SWEPT:
        single = RESNET.format(replicas=replicas, accumulation=10)
        yield "ResNet-50, replicas of 1 IPU", System(str(replicas), replicas, single, None)
    for replicas in (r for r in SWEPT if 4 * r <= SWEPT[-1]):
        bert = BERT.format(replicas=replicas, accumulation=192, **FOUR) + OFF
        name = "BERT-Large, replicas of 4 IPUs"
        yield name, System(str(replicas), 4 * replicas, bert, None)
