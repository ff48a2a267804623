"""Data sets that would be downloaded are generated, of the same shapes (`tools.examples_suite`).

Names of old libraries that the applications still use are put back.
"""

from __future__ import annotations

import sys
import typing
from importlib.machinery import ModuleSpec
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import ImageOps

from ipu_exec.base import on_import

_SAMPLES = 60_000
_MOLECULES = 130_831  # as many as QM9 has, of which so many differ:
_DIFFERENT = 1000
_PICTURES = {
    "MNIST": ((28, 28), 10),
    "FashionMNIST": ((28, 28), 10),
    "CIFAR10": ((32, 32, 3), 10),
}


def _pictures() -> None:
    for name, (shape, classes) in _PICTURES.items():
        setattr(sys.modules["torchvision.datasets"], name, _of(shape, classes))


def _of(shape: tuple[int, ...], classes: int) -> type:
    from PIL import Image

    class Generated:
        """One picture of noise for each class, again and again."""

        def __init__(
            self,
            root: object = None,
            train: bool = True,
            transform: Any = None,
            target_transform: Any = None,
            download: bool = False,
        ) -> None:
            self.transform = transform
            self.classes = [str(number) for number in range(classes)]
            self.data = np.random.default_rng(0).integers(0, 256, (classes, *shape), np.uint8)
            self.targets = [index % classes for index in range(_SAMPLES)]

        def __len__(self) -> int:
            return _SAMPLES

        def __getitem__(self, index: int) -> tuple[Any, int]:
            label = self.targets[index]
            picture = Image.fromarray(self.data[label])
            return (self.transform(picture) if self.transform else picture), label

    return Generated


def _graphs() -> None:
    datasets: Any = sys.modules["torch_geometric.datasets"]
    fake = datasets.FakeDataset

    def small(columns: int, classes: int, task: str = "graph") -> Any:
        def dataset(*_: object, **words: Any) -> Any:
            keep = {key: words[key] for key in ("transform", "pre_transform") if key in words}
            return fake(_DIFFERENT, 20, 4, columns, 0, classes, task, **keep)

        return dataset

    datasets.TUDataset = small(37, 2)
    datasets.Planetoid = lambda *_, **words: _one_graph(fake, 1433, 7, words.get("transform"))
    datasets.QM9 = lambda *_, **words: _molecules(small(11, 2)(), words.get("transform"))
    datasets.IMDB = lambda *_, **__: [_films()]
    datasets.Reddit = lambda *_, **words: _one_graph(fake, 602, 41, words.get("transform"))


def _one_graph(fake: Any, columns: int, classes: int, transform: Any) -> Any:
    dataset = fake(1, 2700, 4, columns, 0, classes, "node")
    data = dataset[0]
    for name in ("train_mask", "val_mask", "test_mask"):
        data[name] = torch.rand(data.num_nodes) < 0.3
    dataset._data_list = None
    dataset.data, dataset.slices = dataset.collate([data])
    dataset.transform = transform
    return dataset


def _molecules(dataset: Any, transform: Any) -> Any:
    """Graphs with what QM9 has of a molecule: numbers of atoms, places, 19 properties."""
    graphs = [dataset[index] for index in range(len(dataset))]
    for graph in graphs:
        atoms = graph.num_nodes
        graph.z, graph.pos = torch.randint(1, 9, (atoms,)), torch.randn(atoms, 3)
        graph.y, graph.edge_attr = torch.randn(1, 19), torch.rand(graph.num_edges, 4)
    dataset._data_list = None
    dataset.data, dataset.slices = dataset.collate(graphs)
    dataset.transform = transform
    dataset._indices = [number % len(graphs) for number in range(_MOLECULES)]
    return dataset


def _films() -> Any:
    """A graph with IMDB's kinds of nodes and edges."""
    from torch_geometric.data import HeteroData

    data, counts = HeteroData(), {"movie": 4278, "director": 2081, "actor": 5257}
    for kind, count in counts.items():
        data[kind].x = torch.rand(count, 3066)
    data["movie"].y = torch.arange(counts["movie"]) % 3
    for name in ("train_mask", "val_mask", "test_mask"):
        data["movie"][name] = torch.rand(counts["movie"]) < 0.3
    for kind in ("director", "actor"):
        ends = torch.stack([torch.randint(counts[end], (5000,)) for end in ("movie", kind)])
        data["movie", "to", kind].edge_index, data[kind, "to", "movie"].edge_index = (
            ends,
            ends.flip(0),
        )
    return data


def _samplers() -> None:
    def with_source(self: object, data_source: object = None) -> None:
        """As PyTorch 2.0 had it."""

    torch.utils.data.Sampler.__init__ = with_source  # type: ignore[assignment]


def _old_names() -> None:
    for name, kind in (("float", float), ("int", int), ("bool", bool), ("object", object)):
        if name not in np.__dict__:
            setattr(np, name, kind)
    posterize = ImageOps.posterize  # which took no bits at all
    ImageOps.posterize = lambda image, bits: posterize(image, max(1, bits))
    fx = vars(sys.modules["torch.fx._symbolic_trace"])
    fx.update({name: getattr(typing, name) for name in typing.__all__ if name not in fx})


def _lightning_1() -> None:
    """Names and hooks of Lightning 1; those at the end of an epoch are not called."""
    lightning = "pytorch_lightning"
    sys.modules[f"{lightning}.utilities.distributed"] = sys.modules[
        f"{lightning}.utilities.rank_zero"
    ]
    checks = vars(sys.modules[f"{lightning}.trainer.configuration_validator"])
    checks["__verify_train_val_loop_configuration"] = lambda *_: None


def _without_sound() -> None:
    """Stand for torchaudio, which reads sound files: here are none."""
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        sys.modules[name] = mock.MagicMock(__spec__=ModuleSpec(name, None), __path__=[])


_without_sound()
_old_names()
_samplers()
on_import.after("pytorch_lightning", _lightning_1)
on_import.after("torchvision.datasets", _pictures)
on_import.after("torch_geometric.datasets", _graphs)
