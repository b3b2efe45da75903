"""Shards that a long call has finished, remembered on this machine so that the same call goes on after a crash.

A folder for each call: one file says what the call makes, one for each finished shard is its manifest row. It
counts only while the parts it names are still stored; losing the folder costs time and nothing else.
"""

from __future__ import annotations

import io
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq

from lake.errors import FormatError
from lake.format import schema
from lake.format.documents import sha256_hex
from lake.format.draft import identity
from lake.format.names import part_keys
from lake.format.segment import encode_segment
from lake.format.shards import shards_of
from lake.format.values import Shard
from lake.guard import Guard

_ANSWER = "columns"
_PLAIN = (bool, int, float, str, bytes, tuple)


def call_token(function: Callable[..., Any], *arguments: Any) -> str | None:
    """What tells a call of a function from others; None where that cannot be said.

    The code counts, that of the functions that it calls by name in its own package, of its object's class too,
    and whatever values it holds on to.
    """
    try:
        held = cloudpickle.dumps(_nature(function, set()))
    except Exception:  # whatever a held value does not like about being pickled
        return None
    return sha256_hex(held + repr(tuple(map(str, arguments))).encode())


def _nature(value: Any, seen: set[int]) -> Any:
    """A callable as plain values: equal for equal code, globals, defaults, closure and state."""
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, partial):
        return _nature(value.func, seen), value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__.__qualname__, _nature(value.__self__, seen)
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    mine = [kind for kind in kinds if _package(kind) == _package(kinds[0])]
    found = [each for kind in mine for each in vars(kind).values() if isinstance(each, FunctionType)]
    return [_function(each, seen) for each in found], value


def _function(function: FunctionType, seen: set[int]) -> Any:
    name = function.__module__, function.__qualname__
    if id(function) in seen:
        return name
    seen.add(id(function))
    named = {each: function.__globals__.get(each) for each in _names(function.__code__)}
    used = [(each, _used(value, function, seen)) for each, value in named.items() if value is not None]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    closure = [_function(each, seen) if isinstance(each, FunctionType) else each for each in cells]
    return (
        name,
        _instructions(function.__code__),
        function.__defaults__,
        function.__kwdefaults__,
        closure,
        used,
    )


def _used(value: Any, function: FunctionType, seen: set[int]) -> Any:
    """A global as far as it tells functions apart: plain values, code of the same package, else only its name."""
    if isinstance(value, FunctionType) and _package(value) == _package(function):
        return _function(value, seen)
    return value if isinstance(value, _PLAIN) else getattr(value, "__qualname__", None)


def _package(value: Any) -> str:
    return str(value.__module__).partition(".")[0]


def _names(code: CodeType) -> list[str]:
    """The global names that a function's code may use, that of functions inside it included."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    return [*code.co_names, *inner]


def _instructions(code: CodeType) -> tuple[Any, ...]:
    """A function's code without where it stands in its file."""
    constants = tuple(_constant(value) for value in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _constant(value: Any) -> Any:
    if isinstance(value, frozenset):  # its order differs from process to process
        return sorted(map(repr, value))
    return _instructions(value) if isinstance(value, CodeType) else value


class Unfinished:
    """Finished shards in `folder`; without one nothing is remembered. Thread-safe."""

    def __init__(self, folder: Path | None, guard: Guard, key: str | None) -> None:
        self._folder, self._guard, self._key = folder, guard, key
        self._lock = threading.Lock()

    def answer(self) -> pa.Schema | None:
        """What an earlier run of the call found it makes; None if there was none."""
        data = self._read(_ANSWER)
        try:
            return schema.decode_schema(data.decode()) if data is not None else None
        except (FormatError, UnicodeDecodeError):
            return None

    def recall(self, shard: Shard) -> Shard | None:
        """What an earlier run made of the shard, if all of it is still stored."""
        data = self._read(_name(shard))
        if data is None:
            return None
        try:
            [made] = shards_of(pq.read_table(io.BytesIO(data)))
        except (FormatError, ValueError, pa.ArrowException):
            return None
        stored = all(self._guard.has(part_keys(part.digest), part.bytes) for part in made.parts)
        return made if stored else None

    def remember(self, shard: Shard, made: Shard, answer: pa.Schema, columns: pa.Schema) -> None:
        """Keep what was made of a shard; `answer`: the columns made, `columns`: those of the whole."""
        if self._folder is None:
            return
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not (self._folder / _ANSWER).exists():
                self._write(_ANSWER, schema.encode_schema(answer).encode())
        self._write(_name(shard), encode_segment([made], columns, self._key)[1])

    def forget(self) -> None:
        """The call has landed, or will not be repeated."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes() if self._folder is not None else None
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        assert self._folder is not None
        fresh = self._folder / f".{name}.{os.getpid()}"
        fresh.write_bytes(data)
        fresh.replace(self._folder / name)


def _name(shard: Shard) -> str:
    return sha256_hex(repr(identity([shard])).encode())
