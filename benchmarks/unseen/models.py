"""Small models of other people's packages, trained for three updates on random data.

python -m benchmarks.unseen.models swin --samples 4

No test needs the packages. To put them where only this command looks, without their own
requirements, which would bring another PyTorch:

python -m pip install --no-deps --target DIRECTORY $(python -m benchmarks.unseen.models --packages)
PYTHONPATH=DIRECTORY HF_HUB_OFFLINE=1 python -m benchmarks.unseen swin t5
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import ipu_exec
from benchmarks.rebalance.hugging_face import library

PACKAGES = (
    "transformers==4.57.1 huggingface_hub==0.36.0 tokenizers==0.22.1 safetensors regex tqdm pyyaml"
    " requests certifi idna urllib3 charset_normalizer packaging filelock vit-pytorch einops"
)
WORDS, CLASSES, LENGTH, SIDE = 4000, 10, 64, 64
UPDATES = 3

Batch = dict[str, Any]  # a model's arguments by name; the tensors among them are inputs


@dataclass(frozen=True)
class Model:
    """``kind``: class of transformers, whose configuration has ``settings``, or "module:class"."""

    kind: str
    batch: Callable[[int], Batch]
    settings: dict[str, Any]

    def made(self) -> nn.Module:
        """The module, with weights as its class begins with them."""
        if ":" in self.kind:
            module, name = self.kind.split(":")
            model: nn.Module = getattr(_imported(module), name)(**self.settings)
            return model
        transformers = library()
        configuration = f"{self.kind.split('For')[0].removesuffix('Model')}Config"
        made: nn.Module = getattr(transformers, self.kind)(
            getattr(transformers, configuration)(**self.settings)
        )
        return made


def _imported(module: str) -> ModuleType:
    """vit-pytorch imports torchvision for a model that is not among these."""
    if module.startswith("vit_pytorch") and "torchvision" not in sys.modules:
        for name in ("torchvision", "torchvision.transforms"):
            stand_in = ModuleType(name)
            stand_in.__spec__ = ModuleSpec(name, None)
            sys.modules[name] = stand_in
        sys.modules["torchvision"].transforms = stand_in  # type: ignore[attr-defined]
    return importlib.import_module(module)


# -- inputs ---


def _words(samples: int, length: int = LENGTH) -> Tensor:
    return torch.randint(5, WORDS, (samples, length))


def _text(samples: int, length: int = LENGTH) -> Batch:
    tokens = _words(samples, length)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _two_classes(samples: int) -> Batch:
    return {"input_ids": _words(samples), "labels": torch.randint(0, 2, (samples,))}


def _pictures(samples: int, *shape: int) -> Batch:
    labels = torch.randint(0, CLASSES, (samples, *shape))
    return {"pixel_values": torch.randn(samples, 3, SIDE, SIDE), "labels": labels}


def _classified(*shape: int) -> Callable[[int], Batch]:
    """Of modules that return scores: the loss is the cross entropy with the labels."""

    def batch(samples: int) -> Batch:
        return {"x": torch.randn(samples, *shape), "labels": torch.randint(0, CLASSES, (samples,))}

    return batch


# -- models ---

_BERT = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "vocab_size": WORDS}
_SEEN = {"image_size": SIDE, "num_labels": CLASSES}
_TOWER = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
_VIT = {
    "image_size": SIDE,
    "patch_size": 16,
    "num_classes": CLASSES,
    "dim": 128,
    "depth": 2,
    "heads": 4,
    "mlp_dim": 256,
}
_WHISPER = {
    **{
        f"{way}_{what}": size
        for way in ("encoder", "decoder")
        for what, size in (
            ("layers", 2),
            ("attention_heads", 4),
            ("ffn_dim", 256),
        )
    },
    **{f"{name}_token_id": k for k, name in enumerate(("pad", "bos", "eos", "decoder_start"))},
    "vocab_size": WORDS,
    "d_model": 128,
    "max_source_positions": 100,
    "max_target_positions": 64,
    "num_mel_bins": 40,
}


def _vit(module: str, kind: str, *shape: int, **settings: Any) -> Model:
    return Model(f"vit_pytorch.{module}:{kind}", _classified(*(shape or (3, SIDE, SIDE))), settings)


MODELS = {
    "t5": Model(
        "T5ForConditionalGeneration",
        lambda samples: {"input_ids": _words(samples), "labels": _words(samples, LENGTH // 2)},
        {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 3, "num_heads": 4}
        | {"vocab_size": WORDS, "decoder_start_token_id": 0},
    ),
    "llama": Model("LlamaForCausalLM", _text, _LLAMA),
    "qwen3": Model("Qwen3ForCausalLM", _text, {**_LLAMA, "head_dim": 64}),
    "gemma2": Model("Gemma2ForCausalLM", _text, {**_LLAMA, "head_dim": 64}),
    "phi": Model("PhiForCausalLM", _text, {**_BERT, "vocab_size": WORDS}),
    "neox": Model("GPTNeoXForCausalLM", _text, {**_BERT, "vocab_size": WORDS}),
    "opt": Model(
        "OPTForCausalLM",
        _text,
        {"hidden_size": 256, "num_hidden_layers": 4, "ffn_dim": 512, "num_attention_heads": 4}
        | {"word_embed_proj_dim": 256, "vocab_size": WORDS},
    ),
    "bloom": Model(
        "BloomForCausalLM",
        _text,
        {"hidden_size": 256, "n_layer": 4, "n_head": 4, "vocab_size": WORDS},
    ),
    "mamba": Model(
        "MambaForCausalLM",
        _text,
        {"hidden_size": 128, "num_hidden_layers": 2, "state_size": 8, "vocab_size": WORDS},
    ),
    "rwkv": Model(
        "RwkvForCausalLM",
        _text,
        {"hidden_size": 128, "num_hidden_layers": 2, "attention_hidden_size": 128}
        | {"vocab_size": WORDS},
    ),
    "electra": Model(
        "ElectraForPreTraining",
        lambda samples: {
            "input_ids": _words(samples),
            "labels": torch.randint(0, 2, (samples, LENGTH)),
        },
        {**_BERT, "vocab_size": WORDS},
    ),
    "albert": Model(
        "AlbertForMaskedLM", _text, {**_BERT, "vocab_size": WORDS, "embedding_size": 64}
    ),
    "longformer": Model(
        "LongformerForMaskedLM",
        lambda samples: _text(samples, 2 * LENGTH),
        {**_BERT, "vocab_size": WORDS, "attention_window": 32},
    ),
    "xlnet": Model(
        "XLNetForSequenceClassification",
        _two_classes,
        {"vocab_size": WORDS, "d_model": 256, "n_layer": 3, "n_head": 4, "d_inner": 512},
    ),
    "funnel": Model(
        "FunnelForSequenceClassification",
        _two_classes,
        {"vocab_size": WORDS, "block_sizes": [2, 2], "d_model": 128, "n_head": 4, "d_head": 32}
        | {"d_inner": 256},
    ),
    "whisper": Model(
        "WhisperForConditionalGeneration",
        lambda samples: {
            "input_features": torch.randn(samples, 40, 200),
            "labels": _words(samples, LENGTH // 4),
        },
        _WHISPER,
    ),
    "clip": Model(
        "CLIPModel",
        lambda samples: {
            "input_ids": _words(samples, LENGTH // 4),
            "pixel_values": torch.randn(samples, 3, 32, 32),
            "return_loss": True,
        },
        {
            "text_config": {**_TOWER, "vocab_size": WORDS},
            "vision_config": {**_TOWER, "image_size": 32, "patch_size": 8},
        },
    ),
    "swin": Model(
        "SwinForImageClassification",
        _pictures,
        {**_SEEN, "patch_size": 2, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6]}
        | {"window_size": 4},
    ),
    "convnext": Model("ConvNextV2ForImageClassification", _pictures, _SEEN),
    "beit": Model(
        "BeitForImageClassification",
        _pictures,
        {**_SEEN, **_BERT, "patch_size": 8, "use_relative_position_bias": True},
    ),
    "segformer": Model(
        "SegformerForSemanticSegmentation",
        lambda samples: _pictures(samples, SIDE, SIDE),
        {"num_labels": CLASSES},
    ),
    "cait": _vit("cait", "CaiT", **_VIT, cls_depth=1),
    "xcit": _vit("xcit", "XCiT", **_VIT, cls_depth=1),
    "rvt": _vit("rvt", "RvT", **_VIT),
    "small-vit": _vit("vit_for_small_dataset", "ViT", **_VIT),
    "merger": _vit(
        "vit_with_patch_merger", "ViT", **_VIT, patch_merge_layer=1, patch_merge_num_tokens=4
    ),
    "dropout": _vit("vit_with_patch_dropout", "ViT", **_VIT, patch_dropout=0.25),
    "cct": _vit(
        "cct",
        "cct_2",
        img_size=SIDE,
        n_conv_layers=1,
        kernel_size=3,
        stride=2,
        padding=1,
        pooling_kernel_size=3,
        pooling_stride=2,
        pooling_padding=1,
        num_classes=CLASSES,
        positional_embedding="learnable",
    ),
    "nest": _vit(
        "nest",
        "NesT",
        image_size=SIDE,
        patch_size=4,
        dim=48,
        heads=3,
        num_hierarchies=3,
        block_repeats=(1, 1, 1),
        num_classes=CLASSES,
    ),
    "pit": _vit(
        "pit",
        "PiT",
        image_size=SIDE,
        patch_size=8,
        dim=64,
        num_classes=CLASSES,
        depth=(1, 1, 1),
        heads=4,
        mlp_dim=128,
    ),
    "levit": _vit(
        "levit",
        "LeViT",
        *(3, 128, 128),
        image_size=128,
        num_classes=CLASSES,
        dim=(64, 96, 128),
        depth=2,
        heads=(2, 3, 4),
        mlp_mult=2,
    ),
}


class Trained(nn.Module):
    """The model with its loss; ``names``: of its inputs, ``others``: arguments that are none."""

    def __init__(self, model: nn.Module, names: list[str], others: Batch, returns_loss: bool):
        super().__init__()
        self.model, self.names, self.others = model, names, others
        self.returns_loss = returns_loss

    def forward(self, *inputs: Tensor) -> Tensor:
        """The loss of a micro-batch."""
        if self.returns_loss:
            out = self.model(**dict(zip(self.names, inputs, strict=True)), **self.others)
            loss: Tensor = ipu_exec.identity_loss(out.loss, reduction="mean")
            return loss
        return nn.functional.cross_entropy(self.model(inputs[0]), inputs[1])


def main() -> None:
    """Train one of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", choices=[*MODELS])
    parser.add_argument("--samples", type=int, default=4, help="of a micro-batch")
    parser.add_argument("--packages", action="store_true", help="print what pip has to install")
    asked = parser.parse_args()
    if asked.packages or not asked.model:
        print(PACKAGES)
        return
    torch.manual_seed(0)
    about = MODELS[asked.model]
    try:
        model = about.made().train()
    except ModuleNotFoundError as error:
        parser.error(f"{error} (--packages prints all that these models need)")
    batch = about.batch(asked.samples)
    inputs = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    others = {name: value for name, value in batch.items() if name not in inputs}
    training = ipu_exec.trainingModel(
        Trained(model, [*inputs], others, ":" not in about.kind),
        ipu_exec.Options(),
        ipu_exec.optim.AdamW(model.parameters(), lr=1e-3),
    )
    for _ in range(UPDATES):
        print(asked.model, "loss", float(training(*inputs.values())))


if __name__ == "__main__":
    main()
