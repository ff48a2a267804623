"""The Block, name scopes, attributes and MultiConv that are open in the model's forward.

`ipu_exec.annotations` and `ipu_exec.ops` open them, the recorder reads them: the only global
state, because a ``forward`` has no argument to pass it in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ipu_exec.capture.rewrites.multi_conv import MultiConvGroup
from ipu_exec.errors import UsageError


@dataclass(frozen=True, slots=True)
class BlockState:
    """A Block as an operator sees it."""

    user_id: str
    ipu_id: int | None


@dataclass(slots=True)
class OpenAnnotations:
    """All open annotations; `OPEN` is the only instance."""

    block: BlockState | None = None
    ended: bool = False  # by the end of a `with Block`: PopTorch allows no operator before the next
    depth: int = 0  # of `with Block`
    next_id: int = 0
    layer_ids: dict[int, str] = field(default_factory=dict)  # id(layer) -> automatic user_id
    scopes: list[str] = field(default_factory=list)  # modules' and `NameScope`s', outermost first
    multi_conv: MultiConvGroup | None = None
    attributes: list[tuple[str, str, str]] = field(default_factory=list)

    def begin(self, user_id: str | None, ipu_id: int | None, layer: object | None = None) -> None:
        """Make the Block the open one; ``layer`` is the module that begins it, if any."""
        if user_id is None:
            user_id = self.layer_ids.get(id(layer)) if layer is not None else None
        if user_id is None:
            user_id = str(self.next_id)
            self.next_id += 1
            if layer is not None:
                self.layer_ids[id(layer)] = user_id
        self.block, self.ended = BlockState(user_id, ipu_id), False


OPEN = OpenAnnotations()


def current_block() -> BlockState | None:
    """The Block that the next operator belongs to: the last one begun; None before the first."""
    return OPEN.block


def multi_conv() -> MultiConvGroup | None:
    """The open multi-convolution, if any."""
    return OPEN.multi_conv


def open_multi_conv(settings: dict[str, Any] | None) -> None:
    """Begin a multi-convolution with these settings, or end it if they are None."""
    if settings is not None and OPEN.multi_conv is not None:
        raise UsageError(
            "Nested poptorch.MultiConv is not supported: end one before the next begins"
        )
    OPEN.multi_conv = None if settings is None else MultiConvGroup(dict(settings))


def attributes() -> tuple[tuple[str, str, str], ...]:
    """(attribute, key, value) of every open `Attribute`; the innermost value of each key."""
    return tuple(
        (*place, value) for place, value in {item[:2]: item[2] for item in OPEN.attributes}.items()
    )


def reset_blocks() -> None:
    """Close any open Block, MultiConv and Attribute, and number automatic Blocks from "0" again."""
    OPEN.multi_conv, OPEN.attributes = None, []
    OPEN.block, OPEN.ended, OPEN.next_id, OPEN.layer_ids = None, False, 0, {}
