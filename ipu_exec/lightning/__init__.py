"""``Trainer(accelerator="ipu")`` for Lightning 2.6.

``import ipu_exec.lightning`` registers the accelerator "ipu" and the strategy "ipu_strategy" with
``lightning`` and with ``pytorch_lightning``, whichever are installed::

    import ipu_exec.lightning
    from lightning import Trainer

    Trainer(accelerator="ipu", devices=8).fit(model)

``IPUStrategy``, ``IPUAccelerator`` and ``IPUPrecision`` of this module belong to
``lightning.pytorch`` if that is installed; `names` gives those of the other. See docs/lightning.md.
"""

from functools import partial as _partial
from typing import Any as _Any

from ipu_exec.base import on_import as _on_import
from ipu_exec.lightning.library import installed as _installed
from ipu_exec.lightning.names import Names, names

if not _installed():
    raise ModuleNotFoundError(
        "ipu_exec.lightning needs Lightning 2.6: pip install 'ipuscope[lightning]'"
    )
for _package in _installed():  # as soon as the script imports it, for that takes seconds
    _on_import.after(_package, _partial(names, _package))


def __getattr__(name: str) -> _Any:
    if name in ("IPUAccelerator", "IPUPrecision", "IPUStrategy"):
        return getattr(names(_installed()[0]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["IPUAccelerator", "IPUPrecision", "IPUStrategy", "Names", "names"]
