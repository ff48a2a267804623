"""Run a model and leave it as it was: its buffers and Python attributes.

Models run once more for a capture, or to find what they read off tensors; what the forward
appends or counts then must not remain. Not every model can be copied instead (LightningModule).
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_OF_TORCH = ("_parameters", "_modules")  # the forward does not change which there are
_COLLECTIONS = {dict, OrderedDict, defaultdict, list, set, deque}
_LRU_CACHE = type(lru_cache(len))
_NOBODYS = {*sys.stdlib_module_names, "torch", "ipu_exec", "ipuscope"} - {"__main__"}
_NONE: Mapping[Any, Any] = {}
_Undo = Callable[[], Any]


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model may run; then its modules' attributes and buffers are restored.

    Lists, dicts, sets, deques and tensors get their contents back, other objects (and tensors in
    lists) only their places. A forward does not change weights.
    """
    undo = [_attributes(module) for module in model.modules()]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


@contextlib.contextmanager
def tensors_unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model may be captured; other tensors than its buffers are restored.

    PyTorch computes with real ones: a fake tensor that the forward left in an attribute, a list, a
    dict or a `functools` cache is taken out.
    """
    beside = [value for module in model.modules() for value in vars(module).values()]
    undo = [
        _tensor(value) for value in beside if _plain_tensor(value) and value.device.type == "cpu"
    ]
    computes = not any(isinstance(one, FakeTensor) for one in model.parameters())
    spaces = _spaces(model) if computes else model.modules()
    before = [(one, dict(vars(one)), _contents(vars(one))) for one in spaces]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()
        for space, earlier, contents in before:
            plain = type if isinstance(space, type) else object  # a module's own would register it
            for name, value in [*vars(space).items()]:
                if not _is_fake(value):
                    _without_fakes(value, 3 if computes else 0, contents.get(name, {}))
                elif name in earlier:
                    plain.__setattr__(space, name, earlier[name])
                else:
                    plain.__delattr__(space, name)


def _spaces(model: torch.nn.Module) -> list[Any]:
    """Where a forward keeps tensors: modules, their objects, the classes, the files of these.

    And the files of what these import: functions, classes and modules.
    """
    modules = list(model.modules())
    values = (value for module in modules for value in vars(module).values())
    objects = {id(one): one for one in values if hasattr(one, "__dict__")}.values()
    classes = {of for one in (*modules, *objects) for of in type(one).__mro__}
    users = {of for of in classes if _file_of(of)}
    files = {_file_of(of) for of in users} & sys.modules.keys()
    imported = {_file_of(value) for name in files for value in [*vars(sys.modules[name]).values()]}
    files |= imported & sys.modules.keys()
    own = (one for one in objects if type(one) in users)
    return [*modules, *own, *users, *(sys.modules[name] for name in files)]


def _file_of(value: object) -> str:
    """The name of a user's file that a class, function or module is of; "" of anything else."""
    if isinstance(value, ModuleType):
        name = value.__name__
    elif isinstance(value, type | FunctionType | _LRU_CACHE):
        name = value.__module__
    else:
        return ""
    return "" if name.split(".")[0] in _NOBODYS else name


def _is_fake(value: object) -> bool:
    return isinstance(value, FakeTensor) or (type(value) is tuple and any(map(_is_fake, value)))


def _contents(space: Mapping[str, Any]) -> dict[str, dict[Any, Any]]:
    return {name: _items(one) for name, one in space.items() if type(one) in _COLLECTIONS and one}


def _items(collection: Any) -> dict[Any, Any]:
    """The items of a collection, by key, by place, or by themselves."""
    if isinstance(collection, set):
        return {one: one for one in collection}
    return dict(collection if isinstance(collection, dict) else enumerate(collection))


def _without_fakes(value: Any, depth: int, earlier: Mapping[Any, Any] = _NONE) -> None:
    """Take fake tensors out of a collection, and ``depth`` - 1 levels below; empty their cache.

    Its ``earlier`` items come back in the place of those.
    """
    if isinstance(value, _LRU_CACHE):
        results = gc.get_referents(value)  # or one of them is the dict of all
        results += [one for kept in results if type(kept) is dict for one in kept.values()]
        if any(map(_is_fake, results)):
            value.cache_clear()
    if isinstance(value, FunctionType) and depth:  # a decorator's cache
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # nothing in it
                _without_fakes(cell.cell_contents, depth - 1)
    if type(value) not in _COLLECTIONS or not depth:
        return
    items = _items(value)
    stay = {key: one for key, one in items.items() if not _is_fake(one)}
    if len(stay) < len(items):
        stay = {
            key: stay.get(key, earlier.get(key)) for key in items if key in stay or key in earlier
        }
        value.clear()
        put_back = value.extend if isinstance(value, list | deque) else value.update
        put_back(stay if isinstance(value, dict) else stay.values())
    for one in stay.values():
        _without_fakes(one, depth - 1)


def _attributes(module: torch.nn.Module) -> _Undo:
    own = vars(module)
    copied = detect_fake_mode() is None  # else buffers are fake ones
    undo = {
        name: _tensor(value) if _plain_tensor(value) else _state(value)
        for name, value in own.items()
        if name not in _OF_TORCH
    }
    buffers = [
        _tensor(buffer) for buffer in own["_buffers"].values() if copied and buffer is not None
    ]

    def put_back() -> None:
        replaced = {name: own[name] for name in _OF_TORCH if name in own}
        own.clear()
        own.update(replaced | {name: restore() for name, restore in undo.items()})
        for restore in buffers:
            restore()

    return put_back


def _state(value: Any) -> _Undo:
    """What gives ``value`` back as it is now."""
    if isinstance(value, dict):
        return _mapping(value)
    if isinstance(value, list | set | deque):
        return _collection(value)
    return lambda: value


def _plain_tensor(value: object) -> bool:
    tensor = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return tensor and not isinstance(value, FakeTensor)


def _tensor(tensor: torch.Tensor) -> _Undo:
    # Also while fake tensors stand for the others: of real ones alone PyTorch computes for real.
    with _disable_current_modes():
        content = tensor.detach().clone()

    def put_back() -> torch.Tensor:
        with _disable_current_modes(), torch.no_grad():
            if not torch.equal(tensor, content):  # a batch norm does not count its version up
                tensor.copy_(content)
        return tensor

    return put_back


def _mapping(mapping: dict[Any, Any]) -> _Undo:
    items = {key: _state(value) for key, value in mapping.items()}

    def put_back() -> dict[Any, Any]:
        restored = {key: restore() for key, restore in items.items()}
        same = restored.keys() == mapping.keys()
        if not same or any(mapping[key] is not restored[key] for key in mapping):
            mapping.clear()
            mapping.update(restored)
        return mapping

    return put_back


def _collection(collection: Any) -> _Undo:
    items = [_state(value) for value in collection]

    def put_back() -> Any:
        restored = [restore() for restore in items]
        collection.clear()
        (collection.update if isinstance(collection, set) else collection.extend)(restored)
        return collection

    return put_back
