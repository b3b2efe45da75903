"""Messages from one process to another through memory that both map, written round and round.

The bytes go through the memory, and through a socket goes word of them: what was written, and what may be
written over. Nothing has a name, so a killed process leaves nothing. The reader has read each message, or copied it
out, before its place is used again; messages longer than the memory go through it in pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lake._os import SharedMemory

SIZE: Final = 64 * 2**20  # bytes of memory for each worker, of which those are taken that were ever written

Octets: TypeAlias = "npt.NDArray[np.uint8]"
Part: TypeAlias = Sequence[Octets]  # of a message, in pieces

_HEADER: Final = struct.Struct("<IIIQ")  # generation, kind, number of parts, bytes written with it
_LENGTH: Final = struct.Struct("<Q")
_LISTEN_SECONDS: Final = 0.01  # between two looks for commands while there is room
_ABORTED: Final = 0  # the length of a piece that says so


class Gone(Exception):
    """The other process has ended."""


class Superseded(Exception):
    """Something else is wanted than what was being sent."""


class Memory:
    """Memory that a process shares with those that it starts, addressed round and round."""

    def __init__(self, size: int = SIZE) -> None:
        self.__setstate__((size, SharedMemory(size)))

    def __getstate__(self) -> Any:
        return self.size, self._shared

    def __setstate__(self, state: Any) -> None:
        self.size, self._shared = state
        self.octets: Octets = np.frombuffer(self._shared.map, np.uint8)

    def write(self, at: int, data: Octets) -> None:
        """Put bytes at a place, counted round and round."""
        place, size = at % self.size, len(data)
        first = min(size, self.size - place)
        self.octets[place : place + first] = data[:first]
        self.octets[: size - first] = data[first:]

    def look(self, at: int, size: int) -> Octets | None:
        """The bytes at a place, as they lie; None where their end is at the beginning."""
        place = at % self.size
        return None if place + size > self.size else self.octets[place : place + size]

    def read(self, at: int, out: Octets) -> None:
        """Copy bytes from a place."""
        place, size = at % self.size, len(out)
        first = min(size, self.size - place)
        out[:first] = self.octets[place : place + first]
        out[first:] = self.octets[: size - first]


class Writer:
    """The end that sends. `commands` gets what the reader says besides, and may raise `Superseded`."""

    def __init__(self, memory: Memory, connection: Connection, commands: Callable[[bytes], object]) -> None:
        self._memory, self._connection, self._commands = memory, connection, commands
        self._written = self._freed = 0
        self._listened = 0.0
        parent = parent_process()
        self._parent: Any = None if parent is None else parent.sentinel

    def send(self, generation: int, kind: int, parts: Sequence[Part]) -> None:
        """Send a message of some kind, of several parts.

        Raises:
            Superseded: `commands` said so; the message was not sent.
            Gone: nobody will read it.
        """
        sizes = [sum(map(len, part)) for part in parts]
        total, lengths = sum(sizes), b"".join(map(_LENGTH.pack, sizes))
        pieces = [piece for part in parts for piece in part]
        if total <= self._memory.size:
            self._await(total)
            for piece in pieces:
                self._put(piece)
            return self._say(_HEADER.pack(generation, kind, len(parts), total) + lengths)
        self._say(_HEADER.pack(generation, kind, len(parts), 0) + lengths)
        most = self._memory.size // 2
        try:
            for piece in pieces:
                for start in range(0, len(piece), most):
                    data = piece[start : start + most]
                    self._await(len(data))
                    self._put(data)
                    self._say(_LENGTH.pack(len(data)))
        except Superseded:
            self._say(_LENGTH.pack(_ABORTED))
            raise
        return None

    def listen(self, *, idle: bool = False) -> None:
        """Take what the reader said; `idle`: wait until it says something."""
        while idle or self._connection.poll():
            self._hear()
            idle = False

    def _put(self, data: Octets) -> None:
        self._memory.write(self._written, data)
        self._written += len(data)

    def _await(self, size: int) -> None:
        now = perf_counter()
        if now - self._listened > _LISTEN_SECONDS:  # each look costs a turn of the interpreter's lock
            self._listened = now
            self.listen()
        while self._memory.size - (self._written - self._freed) < size:
            self._hear()

    def _hear(self) -> None:
        if self._parent is not None and self._connection not in wait([self._connection, self._parent]):
            raise Gone
        try:
            said = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise Gone from None
        if len(said) == _LENGTH.size:
            self._freed += _LENGTH.unpack(said)[0]
        else:
            self._commands(said)

    def _say(self, said: bytes) -> None:
        try:
            self._connection.send_bytes(said)
        except OSError:
            raise Gone from None


class Reader:
    """The end that receives. `take` gives memory for a message's parts after the first."""

    def __init__(self, memory: Memory, connection: Connection, take: Callable[[int], Octets]) -> None:
        self._memory, self._connection, self._take = memory, connection, take
        self._read = self._known = self._told = 0  # bytes copied out, known to be there, said to be free

    def receive(self, generation: int) -> tuple[int, list[Octets]]:
        """The kind and the parts of the next message of this generation; earlier ones are passed over.

        The first part may lie in the shared memory, until the next call.

        Raises:
            Gone: the writer has ended.
        """
        while True:
            free = self._read - self._told
            if free > self._memory.size // 4 or (free and not self._connection.poll()):
                self._tell()
            header = self._hear()
            sent, kind, count, written = _HEADER.unpack_from(header)
            self._known += written
            lengths = [_LENGTH.unpack_from(header, _HEADER.size + _LENGTH.size * n)[0] for n in range(count)]
            if sent == generation:
                parts = self._parts(lengths)
                if parts is not None:
                    return kind, parts
            else:
                self._pass(sum(lengths))

    def say(self, command: bytes) -> None:
        """Say something to the writer, of another length than that of a number."""
        assert len(command) != _LENGTH.size
        try:
            self._connection.send_bytes(command)
        except OSError:
            raise Gone from None

    def _parts(self, lengths: Sequence[int]) -> list[Octets] | None:
        """A message; None if its writer gave up."""
        first, *others = lengths
        part = None
        if first <= self._known - self._read:  # so are the others: nothing is told before the next message
            part = self._memory.look(self._read, first)
            self._read += 0 if part is None else first
        parts = [] if part is None else [part]
        copies = [self._take(length) for length in others]
        if part is None:
            copies.insert(0, np.empty(first, np.uint8))
        for copy in copies:
            at = 0
            while at < len(copy):
                size = self._there(len(copy) - at)
                if not size:
                    return None
                self._memory.read(self._read, copy[at : at + size])
                self._read += size
                at += size
        return [*parts, *copies]

    def _pass(self, total: int) -> None:
        while total and (size := self._there(total)):
            self._read += size
            total -= size

    def _there(self, wanted: int) -> int:
        """How many of the bytes wanted are there; 0: there will be no more of this message."""
        if self._known == self._read:
            self._tell()
            (size,) = _LENGTH.unpack(self._hear())
            self._known += size
        return min(wanted, self._known - self._read)

    def _tell(self) -> None:
        try:
            self._connection.send_bytes(_LENGTH.pack(self._read - self._told))
        except OSError:
            raise Gone from None
        self._told = self._read

    def _hear(self) -> bytes:
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise Gone from None
