"""All modules of torch.nn, and the functions that models use, compile without guessed costs.

This holds in inference and in training. What has no lowering is listed with the reason, and must
leave the list once it has one.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import ipu_exec
from ipu_exec.compiler import lower as program
from ipu_exec.compiler.rows.profile_rows import op_rows
from ipu_exec.lowering.operator_info import words
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.machine import Machine
from ipu_exec.session.compilation import compile_step
from tests.ipu_exec.lowering.test_plans import check
from tests.models import model_of

Inputs = Callable[[], list[Any]]
MODULES: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Inputs]] = {}

SHAPE_FROM_DATA = "its result has a shape that depends on data, a compiled program has one for all"
LINEAR_ALGEBRA = "PopLibs has no vertices for factorisations; on the host before the model"
COMPLEX = "an IPU has no complex numbers"
NONE = {
    "CrossMapLRN2d": (
        "a Python autograd function from before torch 1.0; LocalResponseNorm is the same"
    ),
    "AdaptiveLogSoftmaxWithLoss": SHAPE_FROM_DATA,
    **dict.fromkeys(
        ("nonzero", "masked_select", "bincount", "unique", "corrcoef", "cov"), SHAPE_FROM_DATA
    ),
    **dict.fromkeys(
        ("inv", "cholesky", "solve", "svdvals", "qr", "eigvalsh", "det", "matrix_exp"),
        LINEAR_ALGEBRA,
    ),
    **dict.fromkeys(("rfft", "stft", "view_as_complex", "polar"), COMPLEX),
    "hypot": "the example of CONTRIBUTING.md: the reader lowers it",
    "conv_tbc": "an old layout of conv1d, which is lowered",
}
BASES = {
    "Module",
    "Container",
    "Sequential",
    "ModuleList",
    "ModuleDict",
    "ParameterList",
    "ParameterDict",
    "RNNBase",
    "RNNCellBase",
    "DataParallel",
}


def r(*shape: int) -> Tensor:
    return torch.rand(*shape) * 0.8 + 0.1


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def signs(*shape: int) -> Tensor:
    return torch.sign(torch.rand(*shape) - 0.5)


def module(name: str, inputs: Inputs, *args: Any, **kwargs: Any) -> None:
    """Add a case of a torch.nn module, with a number if the name is already taken."""
    module_class = partial(getattr(nn, name), *args, **kwargs)
    MODULES[
        name if name not in MODULES else f"{name} {sum(n.split()[0] == name for n in MODULES) + 1}"
    ] = module_class, inputs


def x2() -> list[Tensor]:
    return [r(4, 6)]


def two() -> list[Tensor]:
    return [r(4, 6), r(4, 6)]


def three() -> list[Tensor]:
    return [r(4, 6), r(4, 6), r(4, 6)]


IMAGES = {1: lambda: [r(2, 4, 8)], 2: lambda: [r(2, 4, 8, 8)], 3: lambda: [r(2, 4, 4, 6, 6)]}

for name in words(
    """
        ReLU ReLU6 ELU SELU CELU GELU SiLU Mish Softplus Softsign Tanh Sigmoid LogSigmoid Hardtanh
        Hardswish Hardsigmoid Hardshrink Softshrink Tanhshrink LeakyReLU RReLU PReLU Identity
        Flatten Dropout AlphaDropout FeatureAlphaDropout GLU
    """
):
    module(name, x2)
module("GELU", x2, approximate="tanh")
module("Threshold", x2, 0.5, 0.0)
for name in ("Softmax", "Softmin", "LogSoftmax"):
    module(name, x2, -1)
module("Softmax2d", IMAGES[2])
for d, images in IMAGES.items():
    module(f"Conv{d}d", images, 4, 6, 3, padding=1)
    module(f"Conv{d}d", images, 4, 8, 3, padding=1, groups=4, stride=2)
    module(f"ConvTranspose{d}d", images, 4, 6, 3)
    module(f"MaxPool{d}d", images, 2)
    module(f"MaxPool{d}d", images, 3, 2, 1)
    module(f"AvgPool{d}d", images, 2)
    module(f"LPPool{d}d", images, 2, 2)
    module(f"AdaptiveAvgPool{d}d", images, 2)
    module(f"AdaptiveAvgPool{d}d", images, 1)
    module(f"AdaptiveMaxPool{d}d", images, 2)
    module(f"BatchNorm{d}d", images, 4)
    module(f"InstanceNorm{d}d", images, 4, affine=True)
    module(f"Dropout{d}d", images)
    for pad in ("Reflection", "Replication", "Zero", "Circular"):
        module(f"{pad}Pad{d}d", images, 1)
    module(f"ConstantPad{d}d", images, 1, 0.5)
    module(f"LazyConv{d}d", images, 6, 3)
    module(f"LazyConvTranspose{d}d", images, 6, 3)
    module(f"LazyBatchNorm{d}d", images)
    module(f"LazyInstanceNorm{d}d", images)
module("FractionalMaxPool2d", IMAGES[2], 2, output_size=4)
module("FractionalMaxPool3d", IMAGES[3], 2, output_size=(2, 3, 3))
module("SyncBatchNorm", IMAGES[2], 4)  # without a process group it is BatchNorm
module("GroupNorm", IMAGES[2], 2, 4)
module("LayerNorm", x2, 6)
module("RMSNorm", x2, 6)
module("LocalResponseNorm", IMAGES[2], 2)
module("CrossMapLRN2d", IMAGES[2], 2)
module("Linear", x2, 6, 3)
module("LazyLinear", x2, 3)
module("LinearCrossEntropyLoss", lambda: [r(4, 6), ints(3, 4)], 6, 3)
module(
    "LinearCrossEntropyLoss",
    lambda: [r(4, 6), ints(3, 4)],
    6,
    3,
    options=nn.LinearCrossEntropyOptions(batch_chunk_size=2),
)
module("Bilinear", lambda: [r(4, 6), r(4, 5)], 6, 5, 3)
module("Embedding", lambda: [ints(9, 4, 3)], 9, 5)
module("Embedding", lambda: [ints(9, 4, 3)], 9, 5, max_norm=1.0)
module("Embedding", lambda: [ints(9, 4, 3)], 9, 5, sparse=True)
for mode in ("sum", "mean", "max"):
    module("EmbeddingBag", lambda: [ints(9, 4, 3)], 9, 5, mode=mode)
module("EmbeddingBag", lambda: [ints(9, 12), torch.tensor([0, 3, 7])], 9, 5, mode="sum")
module("EmbeddingBag", lambda: [ints(9, 4, 3), None, r(4, 3)], 9, 5, mode="sum")
for name in ("RNN", "LSTM", "GRU"):
    module(name, lambda: [r(5, 2, 6)], 6, 8)
    module(name, lambda: [r(5, 2, 6)], 6, 8, num_layers=2, bidirectional=True, dropout=0.1)
    module(name, lambda: [r(2, 5, 6)], 6, 8, batch_first=True)
    module(f"{name}Cell", x2, 6, 8)
module("RNN", lambda: [r(5, 2, 6)], 6, 8, nonlinearity="relu")
module("LSTM", lambda: [r(5, 2, 6)], 6, 8, proj_size=4)
module("MultiheadAttention", lambda: [r(3, 5, 16)] * 3, 16, 2, batch_first=True)
for kind in ("TransformerEncoderLayer", "TransformerDecoderLayer"):
    given = 1 if "Encoder" in kind else 2
    module(kind, lambda n=given: [r(3, 5, 16) for _ in range(n)], 16, 2, 32, batch_first=True)
    stack, layer = (
        kind.removesuffix("Layer"),
        partial(getattr(nn, kind), 16, 2, 32, batch_first=True),
    )
    MODULES[stack] = (
        lambda s=stack, one=layer: getattr(nn, s)(one(), 2),
        lambda n=given: [r(3, 5, 16) for _ in range(n)],
    )
module("Transformer", lambda: [r(3, 5, 16), r(3, 5, 16)], 16, 2, 1, 1, 32, batch_first=True)
module("CosineSimilarity", two)
module("PairwiseDistance", two)
module("PixelShuffle", IMAGES[2], 2)
module("PixelUnshuffle", IMAGES[2], 2)
module("ChannelShuffle", IMAGES[2], 2)
module("Unflatten", x2, 1, (2, 3))
module("Unfold", IMAGES[2], 2)
module("Fold", lambda: [r(2, 16, 16)], (5, 5), 2)
for mode, d in (
    ("nearest", 1),
    ("linear", 1),
    ("nearest", 2),
    ("nearest-exact", 2),
    ("bilinear", 2),
    ("bicubic", 2),
    ("area", 2),
    ("nearest", 3),
    ("trilinear", 3),
):
    module("Upsample", IMAGES[d], scale_factor=2, mode=mode)
module("UpsamplingNearest2d", IMAGES[2], scale_factor=2)
module("UpsamplingBilinear2d", IMAGES[2], scale_factor=2)

for name in words(
    "L1Loss MSELoss HuberLoss SmoothL1Loss BCELoss PoissonNLLLoss MultiLabelSoftMarginLoss"
):
    module(name, two)
module("BCEWithLogitsLoss", two, pos_weight=torch.full((6,), 2.0))
module("KLDivLoss", two, reduction="batchmean")
module("GaussianNLLLoss", three)
for name in ("TripletMarginLoss", "TripletMarginWithDistanceLoss"):
    module(name, three)
for name in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"):
    module(name, lambda: [r(4, 6), ints(6, 4)])
module("CrossEntropyLoss", lambda: [r(4, 6), ints(6, 4)], label_smoothing=0.1)
module("CrossEntropyLoss", lambda: [r(4, 6), torch.softmax(r(4, 6), -1)])
module("CrossEntropyLoss", lambda: [r(2, 4, 8, 8), ints(4, 2, 8, 8)], weight=torch.full((4,), 2.0))
module("NLLLoss2d", lambda: [r(2, 4, 8, 8), ints(4, 2, 8, 8)])
for name in ("SoftMarginLoss", "HingeEmbeddingLoss"):
    module(name, lambda: [r(4, 6), signs(4, 6).int()])
module("CosineEmbeddingLoss", lambda: [r(4, 6), r(4, 6), signs(4).int()])
module("MarginRankingLoss", lambda: [r(4), r(4), signs(4).int()])
module("MultiMarginLoss", lambda: [r(6), ints(6, 1)])
module("MultiLabelMarginLoss", lambda: [r(4, 6), ints(6, 4, 6)])
module("MultiLabelMarginLoss", lambda: [r(6), ints(6, 6)])
module(
    "CTCLoss",
    lambda: [r(12, 2, 6), ints(5, 2, 4) + 1, torch.tensor([12, 12]), torch.tensor([4, 3])],
)
MODULES["AdaptiveLogSoftmaxWithLoss"] = (
    lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 20, [5, 10]),
    lambda: [r(4, 6), ints(20, 4)],
)


def pool_and_back(d: int) -> nn.Module:
    """Maximum pooling, followed by its inverse."""
    pool = getattr(nn, f"MaxPool{d}d")(2, return_indices=True)
    unpool = getattr(nn, f"MaxUnpool{d}d")(2)
    return model_of(lambda self, x: self.unpool(*self.pool(x)), pool=pool, unpool=unpool)


for d, images in IMAGES.items():
    MODULES[f"MaxUnpool{d}d"] = partial(pool_and_back, d), images


def function(inputs: Inputs, **cases: Callable[..., Any]) -> None:
    for name, call in cases.items():
        FUNCTIONS[name] = call, inputs


def named(inputs: Inputs, names: str) -> None:
    """Add cases of torch functions by name."""
    for name in names.split():
        FUNCTIONS[name] = getattr(torch, name), inputs


def set_rows(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1] = 0
    x[0] = x[1]
    return x


def set_masked(x: Tensor, row: Tensor) -> Tensor:
    x = x.clone()
    x[x[..., 0] > 0.5] = row
    x[:, x[0, :, 0] > 0.5] = row[0]
    return x


def square() -> list[Tensor]:
    return [r(5, 5)]


named(
    square,
    """
        abs acos asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1
        floor frac isnan isinf isfinite lgamma log log10 log1p log2 logit nan_to_num neg rad2deg
        reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh
        trunc logical_not amax amin argmax argmin all any max min mean median nansum norm prod std
        var sum std_mean var_mean count_nonzero tril triu fliplr flipud rot90 trace diagonal diag
        diagflat diff clone ravel nonzero corrcoef cov msort aminmax nanmedian angle frexp
        unbind_copy
    """,
)
function(lambda: [r(5, 5) + 1], acosh=torch.acosh)
named(
    lambda: [r(5, 5), r(5, 5)],
    """
        add sub mul div atan2 fmod remainder maximum minimum fmax fmin pow eq ne lt le gt ge
        logical_and logical_or logical_xor hypot xlogy logaddexp logaddexp2 true_divide dist inner
        kron cdist matmul mm copysign float_power isclose ldexp nextafter
    """,
)
for name in words(
    "cumsum cumprod cummax cummin logcumsumexp sort argsort mode logsumexp softmax log_softmax"
):
    function(square, **{name: partial(getattr(torch, name), dim=0)})
function(
    x2,
    flip=lambda a: a.flip(0),
    lp_norm=lambda a: a.norm(3, dim=1),
    max_norm=lambda a: a.norm(float("inf")),
    vector_norm=lambda a: torch.linalg.vector_norm(a, 1, dim=1),
    normalize=F.normalize,
    clamp=lambda a: a.clamp(0.2, 0.7),
    masked_fill=lambda a: a.masked_fill(a > 0.5, 0.0),
    masked_select=lambda a: a.masked_select(a > 0.5),
    cat=lambda a: torch.cat([a, a]),
    stack=lambda a: torch.stack([a, a]),
    topk=lambda a: a.topk(2),
    kthvalue=lambda a: a.kthvalue(2),
    quantile=lambda a: a.quantile(0.3, dim=1),
    histc=lambda a: a.histc(4),
    bucketize=lambda a: torch.bucketize(a, torch.tensor([0.2, 0.4, 0.6])),
    repeat=lambda a: a.repeat(2, 3),
    repeat_interleave=lambda a: a.repeat_interleave(2, 0),
    tile=lambda a: a.tile(2),
    roll=lambda a: a.roll(1, 0),
    unfold=lambda a: a.unfold(1, 3, 1),
    split=lambda a: a.split(2, 1),
    unbind=lambda a: a.unbind(0),
    diag_embed=torch.diag_embed,
    gumbel_softmax=lambda a: F.gumbel_softmax(a, hard=True),
    bernoulli=torch.bernoulli,
    multinomial=lambda a: torch.multinomial(a, 2),
    multinomial_replaced=lambda a: torch.multinomial(a, 9, replacement=True),
    noise=lambda a: a + torch.randn_like(a) + torch.rand(4, 6),
    randperm=lambda a: a[torch.randperm(4)],
    arange=lambda a: a + torch.arange(6) + torch.linspace(0, 1, 6),
    logspace=lambda a: a + torch.logspace(0, 1, 6),
    eye=lambda a: a + torch.eye(4, 6),
    half=lambda a: a.half().softmax(-1).float(),
    bf16=lambda a: a.bfloat16(),
    int=lambda a: (a * 5).int(),
    contiguous=lambda a: a.t().contiguous(),
    pad=lambda a: F.pad(a, (1, 1)),
    var_of_rows=lambda a: a.var(1),
    max_of_rows=lambda a: a.max(1),
    assigned=set_rows,
    glu=F.glu,
    softmin=lambda a: F.softmin(a, -1),
    powers=lambda a: 2**a + a**2.5 + a**3,
    pdist=F.pdist,
    renorm=lambda a: a.renorm(2, 0, 1.0),
    expand=lambda a: a.expand(2, 4, 6),
    trapezoid=torch.trapezoid,
    svdvals=torch.linalg.svdvals,
    rfft=lambda a: torch.fft.rfft(a).abs(),
    entr=torch.special.entr,
    i0e=torch.special.i0e,
    bessel=torch.special.bessel_j0,
    narrow_copy=lambda a: torch.narrow_copy(a, 1, 1, 3),
    igamma=lambda a: torch.igamma(torch.ones(6), a),
    as_strided_copy=lambda a: torch.as_strided_copy(a, (3, 2), (6, 2)),
    bincount_of_bins=lambda a: torch.bincount((a > 0.5).long().reshape(-1), minlength=4),
    nonzero_static=lambda a: torch.nonzero_static(a > 0.5, size=7),
    diagonal_scatter=lambda a: a.diagonal_scatter(a[0, :4]),
    cauchy=lambda a: a + torch.empty_like(a).cauchy_(),
    nothing=lambda a: a[:, :0] @ a[:, :0].t() + a[:0].sum() + a[:0].var(1).sum(),
    polygamma=lambda a: torch.polygamma(1, a),
    view_as_complex=lambda a: torch.view_as_real(torch.view_as_complex(a.reshape(4, 3, 2)) * 2),
)
function(
    two,
    where=lambda a, b: torch.where(a > b, a, b),
    lerp=lambda a, b: torch.lerp(a, b, 0.3),
    cosine_similarity=F.cosine_similarity,
    cdist_of_ones=lambda a, b: torch.cdist(a, b, p=1),
    cdist_of_threes=lambda a, b: torch.cdist(a, b, p=3),
    masked_scatter=lambda a, b: a.masked_scatter(a > 0.5, b),
    block_diag=torch.block_diag,
    polar=lambda a, b: torch.view_as_real(torch.polar(a, b)),
    copied=lambda a, b: a.clone().copy_(b),
)
function(
    three,
    addcdiv=torch.addcdiv,
    addcmul=torch.addcmul,
    clamp_of_tensors=lambda a, b, c: a.clamp(b - 1, c + 1),
)
function(lambda: [r(2, 30, 6), r(2, 40, 6)], cdist_of_many=torch.cdist)
function(
    lambda: [r(4, 6), ints(6, 4, 3)],
    gather=lambda a, b: a.gather(1, b),
    take=lambda a, b: a.take(b),
    take_along_dim=lambda a, b: a.take_along_dim(b, 1),
    index_select=lambda a, b: a.index_select(1, b[0]),
    index=lambda a, b: a[:, b],
)
function(
    lambda: [r(4, 6), ints(6, 4, 3), r(4, 3)],
    scatter=lambda a, b, c: a.scatter(1, b, c),
    scatter_add=lambda a, b, c: a.scatter_add(1, b, c),
    searchsorted=lambda a, b, c: torch.searchsorted(a.sort(-1)[0], c),
    **{
        f"scatter_{how}": lambda a, b, c, how=how: a.scatter_reduce(1, b, c, how)
        for how in ("sum", "prod", "mean", "amax", "amin")
    },
)
function(
    lambda: [r(4, 6), torch.tensor([0, 3, 1]), r(3, 6)],
    index_add=lambda a, b, c: a.index_add(0, b, c),
    index_put=lambda a, b, c: a.index_put((b,), c),
    index_copy=lambda a, b, c: a.index_copy(0, b, c),
    index_reduce=lambda a, b, c: a.index_reduce(0, b, c, "amax"),
    index_fill=lambda a, b, c: a.index_fill(0, b, 0.0),
)
function(lambda: [r(2, 3, 4), r(2, 5, 4)], einsum=lambda a, b: torch.einsum("bij,bkj->bik", a, b))
function(lambda: [r(3, 5), r(3, 4), r(4, 5)], addmm=torch.addmm)
function(lambda: [r(2, 3, 5), r(2, 3, 4), r(2, 4, 5)], baddbmm=torch.baddbmm)
function(lambda: [r(3, 5), r(2, 3, 4), r(2, 4, 5)], addbmm=torch.addbmm)
function(lambda: [r(4, 5, 6), r(6)], assigned_under_a_mask=set_masked)
function(lambda: [r(6), r(4, 6) > 0.5, r(4, 6)], masked_scatter_broadcast=torch.masked_scatter)
function(
    lambda: [r(12, 2, 6), ints(5, 2, 4) + 1],
    ctc_of_known_lengths=lambda p, t: F.ctc_loss(p, t, (12, 9), (4, 3)),
)
function(lambda: [r(3, 4), r(3), r(4)], addr=torch.addr)
function(lambda: [r(5, 3), r(5, 3)], cross=lambda a, b: torch.linalg.cross(a, b))
function(lambda: [r(3, 4), r(4, 5), r(5, 2)], multi_dot=lambda *a: torch.linalg.multi_dot(a))
function(lambda: [r(4, 6), r(4, 1)], weight_norm=lambda v, g: torch._weight_norm(v, g, 0))
function(
    lambda: [ints(9, 4, 6)],
    one_hot=lambda b: F.one_hot(b, 9),
    bitwise=lambda b: (b & 3) | (b ^ 1) | (b << 1),
    floor_div=lambda b: torch.div(b, 2, rounding_mode="floor"),
    unique=torch.unique,
    bincount=lambda b: torch.bincount(b[0]),
    isin=lambda b: torch.isin(b, torch.tensor([1, 2])),
)
function(
    lambda: [r(2, 2, 5, 8) for _ in range(3)],
    causal_attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    masked_attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q[..., :5]),
    dropped_attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
)
for mode in ("bilinear", "nearest", "bicubic"):
    function(
        lambda: [r(2, 4, 8, 8), r(2, 5, 5, 2)],
        **{f"grid_sample_{mode}": partial(F.grid_sample, mode=mode, align_corners=False)},
    )
function(
    lambda: [r(2, 4, 4, 6, 6), r(2, 3, 3, 3, 3)],
    grid_sample_3d=partial(F.grid_sample, align_corners=False),
)
function(
    lambda: [r(2, 2, 3)], affine_grid=lambda t: F.affine_grid(t, [2, 4, 8, 8], align_corners=False)
)
function(
    IMAGES[2],
    antialias=lambda a: F.interpolate(a, size=(4, 4), mode="bilinear", antialias=True),
    local_response_norm=lambda a: F.local_response_norm(a, 2),
)
function(lambda: [r(5, 2, 4), r(3, 4, 6), r(6)], conv_tbc=torch.conv_tbc)
function(
    lambda: [r(2, 32)],
    stft=lambda a: torch.stft(a, 8, window=torch.ones(8), return_complex=True).abs(),
)
function(
    lambda: [r(3, 3) + 3 * torch.eye(3)],
    inv=torch.linalg.inv,
    det=torch.linalg.det,
    qr=torch.linalg.qr,
    matrix_exp=torch.matrix_exp,
    eigvalsh=torch.linalg.eigvalsh,
    cholesky=torch.linalg.cholesky,
    solve=lambda a: torch.linalg.solve(a, a),
)


class Probe(nn.Module):
    """Calls a module or function; in training, inputs depend on a weight and outputs are summed."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, *inputs: Any) -> Any:
        if self.training:
            inputs = tuple(
                x * self.weight if isinstance(x, Tensor) and x.is_floating_point() else x
                for x in inputs
            )
        if isinstance(self.call, (nn.CrossEntropyLoss, nn.KLDivLoss, nn.MultiLabelSoftMarginLoss)):
            inputs = (inputs[0], inputs[1].detach(), *inputs[2:])  # the target is no variable there
        leaves = [leaf for leaf in tree_leaves(self.call(*inputs)) if isinstance(leaf, Tensor)]
        if not self.training:
            return leaves
        loss = self.weight.square().sum()
        for leaf in leaves:
            if leaf.requires_grad:
                loss = loss + (leaf if leaf.dtype == loss.dtype else leaf.float()).sum()
        return leaves[0], ipu_exec.identity_loss(loss, "none")


def compiled(call: Callable[..., Any], inputs: Inputs, training: bool) -> list[str]:
    """Compile the call; returns the names of the operators whose cost is a guess."""
    torch.manual_seed(0)
    batch = inputs()
    if isinstance(call, nn.Module) and any(
        isinstance(p, nn.UninitializedParameter) for p in call.parameters()
    ):
        call(*batch)  # lazy modules take their shapes from a first batch, as in PyTorch
    options = ipu_exec.Options().showCompilationProgressBar(False)
    probe = Probe(call).train(training)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1) if training else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executable = compile_step(probe, tuple(batch), {}, options, optimizer, training)
    return [row.aten for row in op_rows(executable) if row.estimated]


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the invariants of every plan that is made here."""

    def lower(spec: OpSpec, machine: Machine, really: Callable[..., Plan] = program.lower) -> Plan:
        plan = really(spec, machine)
        check(plan, spec, machine)
        return plan

    monkeypatch.setattr(program, "lower", lower)


CASES: list[Any] = [(name, make, inputs, True) for name, (make, inputs) in MODULES.items()]
CASES += [(name, call, inputs, False) for name, (call, inputs) in FUNCTIONS.items()]


@pytest.mark.parametrize(
    ("name", "call", "inputs", "is_module"), CASES, ids=[case[0] for case in CASES]
)
def test_it_compiles(name: str, call: Callable[..., Any], inputs: Inputs, is_module: bool) -> None:
    for training in (False, True):
        function = call() if is_module else call
        if name in NONE:
            with pytest.raises(ipu_exec.Error):
                compiled(function, inputs, training)
        else:
            assert compiled(function, inputs, training) == []


def test_every_module_of_torch_nn_is_probed() -> None:
    probed = {name.split()[0] for name in MODULES}
    modules = {n for n, c in vars(nn).items() if inspect.isclass(c) and issubclass(c, nn.Module)}
    assert modules - probed - BASES == set()


def test_the_list_of_what_has_none_names_cases_only() -> None:
    assert set(NONE) <= set(MODULES) | set(FUNCTIONS)
