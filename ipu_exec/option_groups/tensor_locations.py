"""Where tensors are stored: on the chip, in streaming memory, or in parts on the replicas."""

from __future__ import annotations

import copy
from typing import Any, Self

from ipu_exec.errors import UsageError
from ipu_exec.option_groups.group import Group


class TensorLocationSettings(Group):
    """The location of one kind of tensor. Values not set are None."""

    def __init__(self) -> None:
        super().__init__(
            on_chip_storage=None,
            replicated_tensor_sharding=None,
            min_elements_for_off_chip=None,
            min_elements_for_replicated_tensor_sharding=None,
            io_tiles_to_load=None,
            io_tiles_to_store=None,
        )

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """False: in streaming memory, loaded when needed. None: the execution strategy decides."""
        if use is None:
            return self._set(on_chip_storage=None)
        return self._flag("useOnChipStorage", on_chip_storage=use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Each replica stores only its part of weights, optimiser states and accumulators.

        Of activations only if phases are pipelines: those that all IPUs of a stage
        (`tensorSharding`) have alike wait off the chip in parts.
        """
        return self._flag("useReplicatedTensorSharding", replicated_tensor_sharding=use)

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Smaller tensors stay on the chip; by default those of one element, as in PopART."""
        return self._count("minElementsForOffChip", 0, min_elements_for_off_chip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Smaller tensors are not sharded; by default below 8,192 elements, as in PopART."""
        return self._count(
            "minElementsForReplicatedTensorSharding",
            0,
            min_elements_for_replicated_tensor_sharding=min_elements,
        )

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load through I/O tiles while the others compute.

        Takes effect in `PipelinedExecution` with Phases and `TensorLocations.numIOTiles`;
        otherwise compiling warns that compute tiles load it.
        """
        return self._flag("useIOTilesToLoad", io_tiles_to_load=use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store through I/O tiles: as `useIOTilesToLoad`."""
        return self._flag("useIOTilesToStore", io_tiles_to_store=use)

    def named(self) -> dict[str, int]:
        """The values that are set, by PopTorch's names."""
        return {
            theirs: int(self._values[own])
            for theirs, own in _LOCATION_NAMES.items()
            if self._values[own] is not None
        }

    def __getitem__(self, name: str) -> int:
        """By PopTorch's name, such as "onChip". KeyError if it is not set."""
        return self.named()[name]

    @property
    def off_chip(self) -> bool:
        """True after ``useOnChipStorage(False)``."""
        return self._values["on_chip_storage"] is False


_LOCATION_NAMES = {
    "minElementsForOffChip": "min_elements_for_off_chip",
    "minElementsForReplicatedTensorSharding": "min_elements_for_replicated_tensor_sharding",
    "onChip": "on_chip_storage",
    "useReplicatedTensorSharding": "replicated_tensor_sharding",
    "useIOTilesToLoad": "io_tiles_to_load",
    "useIOTilesToStore": "io_tiles_to_store",
}


class TensorLocationOptions(Group):
    """``opts.TensorLocations``: where weights, optimiser states and other tensors are stored."""

    def __init__(self) -> None:
        super().__init__(
            location_activation=TensorLocationSettings(),
            location_weight=TensorLocationSettings(),
            location_optimizer=TensorLocationSettings(),
            location_accumulator=TensorLocationSettings(),
            num_io_tiles=0,
        )

    def _location(self, method: str, /, **value: Any) -> Self:
        ((name, settings),) = value.items()
        if not isinstance(settings, TensorLocationSettings):
            raise UsageError(
                f"TensorLocations.{method} takes a TensorLocationSettings(), not {settings!r}"
            )
        return self._set(**{name: copy.deepcopy(settings)})

    def by_setter(self) -> dict[str, TensorLocationSettings]:
        """The location of each kind of tensor, by the method that sets it."""
        return {
            "setActivationLocation": self.location_activation,
            "setWeightLocation": self.location_weight,
            "setOptimizerLocation": self.location_optimizer,
            "setAccumulatorLocation": self.location_accumulator,
        }

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Where activations wait for the backward; compiling warns that a stash stays on chip."""
        return self._location("setActivationLocation", location_activation=location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Where weights are stored; off the chip they are loaded for each use, or phase."""
        return self._location("setWeightLocation", location_weight=location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Where optimiser states are stored."""
        return self._location("setOptimizerLocation", location_optimizer=location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Where gradient accumulators are stored."""
        return self._location("setAccumulatorLocation", location_accumulator=location)

    def numIOTiles(self, num_tiles: int) -> Self:
        """Tiles of each IPU set aside for I/O: even, 32 to 192; the others compute meanwhile.

        For the tensors of `set_overlap_for_input` and `set_overlap_for_output`.
        """
        if (
            isinstance(num_tiles, bool)
            or not isinstance(num_tiles, int)
            or not 32 <= num_tiles <= 192
            or num_tiles % 2
        ):
            raise UsageError(
                "TensorLocations.numIOTiles must be an even number between 32 and 192."
                f" It is {num_tiles!r}"
            )
        return self._set(num_io_tiles=num_tiles)
