"""``Trainer(accelerator="ipu")`` for Lightning 2.6.

``import ipu_exec.lightning`` registers the accelerator "ipu" and the strategy "ipu_strategy" with
``lightning`` and with ``pytorch_lightning``, whichever are installed::

    import ipu_exec.lightning
    from lightning import Trainer

    Trainer(accelerator="ipu", devices=8).fit(model)

``IPUStrategy``, ``IPUAccelerator`` and ``IPUPrecision`` of this module belong to
``lightning.pytorch`` where that is installed; `names` gives those of the other. docs/lightning.md
says what is counted how.
"""

from ipu_exec.lightning.library import installed as _installed
from ipu_exec.lightning.names import Names, names

_packages = _installed()
if not _packages:
    raise ModuleNotFoundError(
        "ipu_exec.lightning needs Lightning 2.6: pip install 'ipuscope[lightning]'"
    )
_all = [names(package) for package in _packages]
IPUAccelerator = _all[0].IPUAccelerator
IPUPrecision = _all[0].IPUPrecision
IPUStrategy = _all[0].IPUStrategy

__all__ = ["IPUAccelerator", "IPUPrecision", "IPUStrategy", "Names", "names"]
