"""Handwritten digits, MNIST's or scikit-learn's, and the small network of four Blocks that tells
them apart.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import ipu_exec as poptorch

TEST_SHARE = 0.2
MAX_SHIFT = 2  # pixels


class ConvStage(nn.Module):
    """Convolution, max pooling, ReLU."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size=5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(functional.max_pool2d(self.conv(x), 2))


class Mnist(nn.Module):
    """Images [n, 1, 28, 28] to logits [n, 10]; with labels, the loss too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ConvStage(1, 10)
        self.layer2 = ConvStage(10, 20)
        self.layer3 = nn.Linear(320, 256)
        self.layer4 = nn.Linear(256, 10)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("B1"):
            x = self.layer1(x)
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = functional.relu(self.layer3(x.flatten(1)))
        with poptorch.Block("B4"):
            x = self.layer4(x)
            if labels is None:
                return x
            return x, functional.cross_entropy(x, labels)


# -- data ---


class ShiftedDigits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """``repeats`` passes over the images, each image moved by a few pixels anew.

    scikit-learn's set has 1,437 images to train on, fewer than the 4,000 of one call; repeating
    them with random shifts fills it with images that are not quite the same.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, repeats: int, seed: int) -> None:
        self.images, self.labels, self.repeats = images, labels, repeats
        self.random = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.images) * self.repeats

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index % len(self.images)]
        down, right = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (2,), generator=self.random).tolist()
        return torch.roll(image, (down, right), dims=(1, 2)), self.labels[index % len(self.labels)]


def read_idx(path: Path) -> torch.Tensor:
    """An IDX file of unsigned bytes, gzipped or not, as uint8 (yann.lecun.com/exdb/mnist)."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    zero, kind, dimensions = struct.unpack_from(">HBB", content)
    if zero != 0 or kind != 8:
        raise SystemExit(
            f"{path} is no IDX file of unsigned bytes (it begins with {content[:4].hex()})"
        )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    values = torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8)
    if values.numel() != math.prod(shape):
        raise SystemExit(
            f"{path} is cut short: {values.numel():,} bytes of {math.prod(shape):,}; fetch it again"
        )
    return values.reshape(shape)


def load_mnist(directory: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, test images and labels from the four files of MNIST."""

    def find(stem: str) -> torch.Tensor:
        for name in (
            stem,
            f"{stem}.gz",
            stem.replace("-idx", ".idx"),
            stem.replace("-idx", ".idx") + ".gz",
        ):
            if (directory / name).is_file():
                return read_idx(directory / name)
        raise SystemExit(
            f"--data {directory} has no {stem} or {stem}.gz; it needs the four IDX files of MNIST"
        )

    def images(stem: str) -> torch.Tensor:
        return (find(stem).float() / 255).unsqueeze(1)

    return (
        images("train-images-idx3-ubyte"),
        find("train-labels-idx1-ubyte").long(),
        images("t10k-images-idx3-ubyte"),
        find("t10k-labels-idx1-ubyte").long(),
    )


def load_small_digits(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """scikit-learn's 1,797 digits of 8x8 pixels, scaled up to 28x28; a fifth are for testing."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        words = "the digits are scikit-learn's: pip install '.[examples]', or --data DIR"
        raise SystemExit(words) from None

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    test = math.ceil(len(images) * TEST_SHARE)
    return images[order[test:]], labels[order[test:]], images[order[:test]], labels[order[:test]]
