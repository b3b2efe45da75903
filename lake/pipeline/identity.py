"""What a pipeline's items depend on, as one digest: structure, parameters, sources, and the code of functions.

Code of the caller's counts as its bytecode, constants, defaults, captured values and the global names that it
reads; where it stands in a file and its comments do not. Code of installed packages counts by name and
version, lake's own by name. Whatever else a function holds must be a plain value.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import json
import logging
import pathlib
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from lake.errors import NotReproducibleError
from lake.pipeline.node import Node, graph, is_ordered
from lake.pipeline.seeds import Seed

FORMAT: Final = 1

_INSTALLED: Final = tuple(
    sysconfig.get_path(name)
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if sysconfig.get_path(name)
)

_Slot: Final = type(vars(NamedTuple("_Named", [("one", int)]))["one"])  # what a named tuple keeps a field in


def fingerprint(root: Node, tag: str | None = None) -> str:
    """The digest of everything that the items of a pipeline depend on.

    `tag` enters it, and stands for what cannot be pinned down.

    Raises:
        NotReproducibleError: a seed that nobody chose; without a tag, a value that is not plain. Names the stage.
    """
    digests: dict[Node, str] = {}
    for node, number in graph(root).items():
        seen = _Seen(f"stage {number}, {node.label}", pinned=tag is None)
        if tag is None and not is_ordered(node):
            raise NotReproducibleError(
                f"stage {number}, {node.label}: ordered=False gives another order each time"
            )
        said = {name: seen.of(value, name) for name, value in node.facts().items()}
        below = [digests[each] for each in node.inputs]
        digests[node] = _digest([type(node).__name__, said, below])
    return _digest([FORMAT, digests[root], tag])


def _digest(said: Any) -> str:
    text = json.dumps(said, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Seen:
    """Turns values of one stage into JSON that differs where they do."""

    def __init__(self, stage: str, *, pinned: bool) -> None:
        self._stage, self._pinned = stage, pinned
        self._known: dict[int, tuple[Any, Any]] = {}  # objects (kept alive) and what they gave
        self._within: list[int] = []  # objects that are being looked into, which may hold themselves

    def of(self, value: Any, path: str) -> Any:
        """A value as JSON, with its type."""
        plain = self._plain(value)
        if plain is not None:
            return plain
        if id(value) in self._within:
            return ["again", len(self._within) - self._within.index(id(value))]
        if id(value) not in self._known:
            self._within.append(id(value))
            self._known[id(value)] = value, _digest(self._compound(value, path))
            self._within.pop()
        return self._known[id(value)][1]

    def _plain(self, value: Any) -> Any:
        kind = type(value)
        if value is None or value is ... or kind in (bool, int, str):
            return [kind.__name__, str(value)]
        if kind is float:
            return ["float", value.hex()]
        if kind is complex:
            return ["complex", repr(value)]
        if kind in (bytes, bytearray):
            return [kind.__name__, hashlib.sha256(value).hexdigest()]
        if isinstance(value, np.dtype | range | pathlib.PurePath):
            return [kind.__name__, str(value)]
        return None

    def _compound(self, value: Any, path: str) -> Any:
        kind = type(value)
        if isinstance(value, Seed):
            return self._seed(value)
        if kind in (list, tuple):
            return [kind.__name__, [self.of(each, f"{path}[{place}]") for place, each in enumerate(value)]]
        if kind in (set, frozenset):
            return [kind.__name__, sorted(_digest(_Seen.of(self._apart(), each, path)) for each in value)]
        if isinstance(value, Mapping) and kind in (dict, types.MappingProxyType):
            pairs = [[self.of(key, path), self.of(each, f"{path}[{key!r}]")] for key, each in value.items()]
            return ["dict", pairs]
        if isinstance(value, list | tuple | dict):  # of a class of the caller's
            inner = self.of(list(value.items()) if isinstance(value, dict) else list(value), path)
            return ["items", self.of(kind, path), inner, self.of(getattr(value, "__dict__", {}), path)]
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            data = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return ["array", value.dtype.str, list(value.shape), data]
        if isinstance(value, enum.Enum):
            return ["enum", kind.__module__, kind.__qualname__, value.name]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__, _release(value.__name__)]
        if isinstance(value, logging.Logger):
            return ["logger", value.name]
        return self._code(value, path)

    def _code(self, value: Any, path: str) -> Any:
        if isinstance(value, functools.partial):
            return ["partial", self.of((value.func, value.args, value.keywords), path)]
        if isinstance(value, types.MethodType):
            return ["method", self.of(value.__func__, path), self.of(value.__self__, f"{path}.__self__")]
        if isinstance(value, staticmethod | classmethod):
            return [type(value).__name__, self.of(value.__func__, path)]
        if isinstance(value, property):
            return ["property", self.of((value.fget, value.fset), path)]
        if isinstance(value, functools.cached_property):
            return ["property", self.of(value.func, path)]
        if isinstance(value, types.FunctionType):
            if _is_installed(value.__module__):
                return _by_name(value)
            return self._function(value, path)
        if isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | np.ufunc):
            owner = getattr(value, "__self__", None)
            if owner is None or isinstance(owner, types.ModuleType | type):
                return _by_name(value)
            return ["method", value.__name__, self.of(owner, path)]
        if isinstance(value, _Slot):
            return ["slot", repr(value)]
        if isinstance(value, type):
            return _by_name(value) if _is_installed(value.__module__) else self._class(value, path)
        return self._instance(value, path)

    def _function(self, fn: types.FunctionType, path: str) -> Any:
        captured = {
            name: self.of(cell.cell_contents, f"{path}: captured {name}")
            for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
            if _is_filled(cell)
        }
        read = {
            name: self.of(fn.__globals__[name], f"{path}: global {name}")
            for name in sorted(_global_names(fn.__code__))
            if name in fn.__globals__
        }
        defaults = self.of((fn.__defaults__, fn.__kwdefaults__), f"{path}: defaults")
        return [
            "function",
            _module(fn),
            fn.__qualname__,
            self._bytecode(fn.__code__, path),
            defaults,
            captured,
            read,
        ]

    def _bytecode(self, code: types.CodeType, path: str) -> Any:
        constants = [
            self._bytecode(each, path) if isinstance(each, types.CodeType) else self._apart().of(each, path)
            for each in code.co_consts
        ]
        names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return [
            "code",
            hashlib.sha256(code.co_code).hexdigest(),
            constants,
            [list(each) for each in names],
            counts,
        ]

    def _class(self, cls: type, path: str) -> Any:
        skipped = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
                   "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__match_args__",
                   "__abstractmethods__", "_abc_impl", "__annotate_func__", "__annotations_cache__"}  # fmt: skip
        members = {
            name: self.of(member, f"{path}.{name}")
            for name, member in sorted(vars(cls).items())
            if name not in skipped
            and not isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType)
        }
        bases = [self.of(base, path) for base in cls.__bases__]
        return ["class", _module(cls), cls.__qualname__, members, bases]

    def _instance(self, value: Any, path: str) -> Any:
        kind = type(value)
        state = _state_of(value)
        if state is None:
            if self._pinned:
                raise NotReproducibleError(
                    f"{self._stage}: {path} is a {kind.__module__}.{kind.__qualname__}, whose value cannot be "
                    "pinned down; tag='...' stands for it, and is yours to change when it changes"
                )
            return ["unpinned", kind.__module__, kind.__qualname__]
        return [
            "instance",
            self.of(kind, path),
            {name: self.of(each, f"{path}.{name}") for name, each in state.items()},
        ]

    def _seed(self, seed: Seed) -> Any:
        if seed.drawn:
            raise NotReproducibleError(
                f"{self._stage}: its seed was drawn when the pipeline was made, and is another one each time: "
                "give seed=0, or any other number"
            )
        return ["seed", str(seed.value)]

    def _apart(self) -> _Seen:
        """The same without a memory, for what has no order or no identity."""
        return _Seen(self._stage, pinned=self._pinned)


def _state_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that is nothing but them; None where there is more to it."""
    kind = type(value)
    if dataclasses.is_dataclass(value):
        return {
            each.name: getattr(value, each.name)
            for each in dataclasses.fields(value)
            if each.metadata.get("identity", True)
        }
    names = [name for cls in kind.__mro__ for name in _slots(cls)]
    is_plain = kind.__basicsize__ <= object.__basicsize__ + 8 * (len(names) + 2) and kind.__itemsize__ == 0
    if not is_plain or not (hasattr(value, "__dict__") or names):
        return None
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return found | dict(sorted(getattr(value, "__dict__", {}).items()))


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(name for name in slots if not name.startswith("__"))


def _global_names(code: types.CodeType) -> set[str]:
    """The names that code looks up in its module, nested code included."""
    found = {
        each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found |= _global_names(each)
    return found


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python, an installed package or lake."""
    top = (module or "").partition(".")[0]
    if top in ("builtins", "lake") or top in sys.builtin_module_names:
        return True
    if top == "__main__":
        return False
    file = getattr(sys.modules.get(str(module)), "__file__", None) or getattr(
        sys.modules.get(top), "__file__", None
    )
    return file is not None and file.startswith(_INSTALLED)


def _by_name(value: Any) -> Any:
    module = str(getattr(value, "__module__", None) or type(value).__module__)
    name = getattr(value, "__qualname__", None) or value.__name__
    return ["name", module, name, _release(module)]


def _release(module: str) -> str:
    """The version of an installed package; nothing for Python's own and lake."""
    top = module.partition(".")[0]
    if top == "lake" or top in sys.stdlib_module_names:
        return ""
    return str(getattr(sys.modules.get(top), "__version__", ""))


def _module(value: Any) -> str:
    return str(value.__module__)
