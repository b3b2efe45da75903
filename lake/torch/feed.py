"""Feed processes: where the functions of a pipeline run, so that none ever runs in a thread of a training process.

Each worker makes some of the items, in an order that is known beforehand, a bounded number of bytes ahead of
who takes them. Workers live as long as their team, and are told what to make at the beginning of each epoch.
An error, or the end of a worker however it came, reaches who asks for the item that is missing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Final, Protocol

import cloudpickle
import numpy as np

from lake.parts import Pool
from lake.pipeline.seeds import seeded
from lake.scan.crew import be_one_of_many
from lake.torch import wire
from lake.torch.ring import SIZE, Gone, Memory, Octets, Part, Reader, Superseded, Writer

MESSAGE_ITEMS: Final = 64  # small items that are sent together, at most
MESSAGE_BYTES: Final = 256 * 2**10  # and what they take, about
MESSAGE_SECONDS: Final = 0.002  # and how long the first may wait for the last
_METRICS_SECONDS: Final = 1.0
_END_SECONDS: Final = 1.0  # that a worker has to end by itself

_ITEMS, _END, _ERROR = range(3)


class Producer(Protocol):
    """Makes items one by one."""

    def next(self) -> Any:
        """The next one; StopIteration after the last."""

    def close(self) -> None:
        """Let go of threads and reads."""


class Job(Protocol):
    """What workers do. Given to a process once; each epoch opens it with what that one is to make."""

    def open(self, wanted: Any) -> Producer:
        """Begin to make what is wanted, which pickles."""

    def metrics(self) -> Any:
        """What it has cost so far."""


@dataclass(frozen=True)
class Shipped:
    """A job that is pickled by value, functions included."""

    job: Job

    def __reduce__(self) -> Any:
        return _unshipped, (cloudpickle.dumps(self.job),)


def _bytes(parts: Sequence[Part]) -> int:
    return sum(len(piece) for part in parts for piece in part)


def _unshipped(data: bytes) -> Shipped:
    return Shipped(pickle.loads(data))


# --- in the worker ----------------------------------------------------------------------------


class _Worker:
    def __init__(self, job: Job, number: int, memory: Memory, connection: Connection) -> None:
        self._job, self._number = job, number
        self._writer = Writer(memory, connection, self._command)
        self._generation = 0
        self._wanted: Any = None
        self._is_busy = False
        self._told = perf_counter()

    def work(self) -> None:
        while True:
            while self._wanted is None:
                self._writer.listen(idle=True)
            self._is_busy = True
            with contextlib.suppress(Superseded):
                self._produce()
                self._wanted = None
            self._is_busy = False

    def _command(self, said: bytes) -> None:
        self._generation, self._wanted = pickle.loads(said)
        if self._is_busy:
            raise Superseded

    def _produce(self) -> None:
        producer: Producer | None = None
        _seed(seeded("feed", self._generation, self._number))
        try:
            producer = self._job.open(self._wanted)
            self._send_all(producer)
        except (Superseded, Gone):
            raise
        except BaseException as error:
            where = f"in feed process {self._number} (pid {os.getpid()})"
            self._send(_ERROR, wire.dump_error(error, where))
        finally:
            if producer is not None:
                producer.close()

    def _send_all(self, producer: Producer) -> None:
        items: list[Any] = []
        is_over, most = False, 1
        while not is_over:
            begun = perf_counter()
            while len(items) < most:
                try:
                    item = producer.next()
                except StopIteration:
                    is_over = True
                    break
                except BaseException:
                    if items:  # that were made before
                        self._send(_ITEMS, wire.dump((items, None)))
                    raise
                items.append(item)
                if perf_counter() - begun > MESSAGE_SECONDS:
                    break
            if items:
                parts = wire.dump((items, self._metrics()))
                most = max(1, min(MESSAGE_ITEMS, MESSAGE_BYTES * len(items) // _bytes(parts)))
                self._send(_ITEMS, parts)
            items.clear()
        self._send(_END, wire.dump(([], self._job.metrics())))

    def _metrics(self) -> Any:
        now = perf_counter()
        if now - self._told < _METRICS_SECONDS:
            return None
        self._told = now
        return self._job.metrics()

    def _send(self, kind: int, parts: Sequence[Part]) -> None:
        self._writer.send(self._generation, kind, parts)


def _work(
    shipped: Shipped, number: int, memory: Memory, connection: Connection, inherited: Sequence[Connection]
) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; who trains decides what it means
    for other in inherited:
        other.close()
    be_one_of_many()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    with contextlib.suppress(Gone):
        _Worker(shipped.job, number, memory, connection).work()


def _seed(seed: int) -> None:
    """Seed the global generators, which workers that were forked would share the state of."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


# --- in the process that trains ---------------------------------------------------------------


class _Hand:
    """One worker, seen from outside."""

    def __init__(self, process: Any, memory: Memory, connection: Connection, pool: Pool, number: int) -> None:
        self.process, self.connection, self.number = process, connection, number
        self.reader = Reader(memory, connection, lambda size: pool.take(1, size)[0])
        self.items: deque[Any] = deque()
        self.is_over = False
        self.metrics: Any = None

    def take(self, generation: int) -> Any:
        while not self.items:
            if self.is_over:
                raise StopIteration
            self._receive(generation)
        return self.items.popleft()

    def _receive(self, generation: int) -> None:
        kind, parts = self._message(generation)
        if kind == _ERROR:
            self.is_over = True
            raise wire.load_error(parts)
        items, metrics = wire.load(parts)
        self.items.extend(items)
        self.is_over = kind == _END
        self.metrics = metrics or self.metrics

    def _message(self, generation: int) -> tuple[int, list[Octets]]:
        try:
            return self.reader.receive(generation)
        except Gone:
            raise RuntimeError(self._obituary()) from None

    def _obituary(self) -> str:
        self.process.join(_END_SECONDS)
        code = self.process.exitcode
        how = (
            "ended"
            if code is None
            else f"was killed by {_signal(-code)}"
            if code < 0
            else f"ended with code {code}"
        )
        hint = "; the system kills with SIGKILL where memory runs out" if code == -9 else ""
        return f"feed process {self.number} (pid {self.process.pid}) {how}{hint}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Hands(Protocol):
    """Workers, in whichever process, that make the items of one epoch after another."""

    def begin(self, wanted: Sequence[Any]) -> None:
        """Have each worker make what is wanted of it from now on."""

    def take(self, worker: int) -> Any:
        """The next item of a worker.

        Raises:
            StopIteration: it has made all.
            RuntimeError: it has ended.
            Exception: what was raised in it.
        """

    def finish(self) -> None:
        """Hear what workers that made all have to tell at the end."""

    def end(self) -> None:
        """Have workers make nothing more, until the next `begin`."""

    def metrics(self) -> list[Any]:
        """The last metrics of each worker that told any."""

    def close(self) -> None:
        """End the workers."""


class Alone(Hands):
    """The only worker is who asks."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._producer: Producer | None = None

    def begin(self, wanted: Sequence[Any]) -> None:
        self.end()
        [only] = wanted
        self._producer = self._job.open(only)

    def take(self, worker: int) -> Any:
        if self._producer is None:
            raise StopIteration
        return self._producer.next()

    def finish(self) -> None:
        pass

    def end(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def metrics(self) -> list[Any]:
        return [self._job.metrics()]

    def close(self) -> None:
        self.end()


class Team(Hands):
    """Processes. They start with the first epoch, and live as long as this.

    `context`: a start method, or a context of `multiprocessing`; None: as Python is set.
    """

    def __init__(self, job: Job, workers: int, context: Any = None, *, ring_bytes: int = SIZE) -> None:
        self._job, self.workers, self._ring_bytes = job, workers, ring_bytes
        is_name = context is None or isinstance(context, str)
        self._context: Any = get_context(context) if is_name else context
        self._pool = Pool()
        self._hands: list[_Hand] = []
        self._generation = 0
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._pid = 0

    def begin(self, wanted: Sequence[Any]) -> None:
        if self._finalizer is None or self._pid != os.getpid():  # a forked child has workers of its own
            self._start()
        self._generation += 1
        for hand, each in zip(self._hands, wanted, strict=True):
            hand.items.clear()
            hand.is_over = each is None
            try:
                hand.reader.say(pickle.dumps((self._generation, each)))
            except Gone:
                message = hand._obituary()
                self.close()
                raise RuntimeError(message) from None

    def take(self, worker: int) -> Any:
        return self._hands[worker].take(self._generation)

    def finish(self) -> None:
        for hand in self._hands:
            with contextlib.suppress(StopIteration):
                hand.take(self._generation)

    def end(self) -> None:
        if self._finalizer is not None and self._finalizer.alive and self._pid == os.getpid():
            with contextlib.suppress(RuntimeError):
                self.begin([None] * self.workers)

    def metrics(self) -> list[Any]:
        return [hand.metrics for hand in self._hands if hand.metrics is not None]

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._hands, self._finalizer = [], None

    def _start(self) -> None:
        self._hands, self._pid = [], os.getpid()
        is_fork = self._context.get_start_method() == "fork"
        for number in range(self.workers):
            memory = Memory(self._ring_bytes)
            ours, theirs = self._context.Pipe(duplex=True)
            _ours.add(ours)
            inherited = (
                list(_ours) if is_fork else []
            )  # held open there, they would hide that this end closed
            process = self._context.Process(
                target=_work,
                args=(Shipped(self._job), number, memory, theirs, inherited),
                name=f"lake-feed-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._hands.append(_Hand(process, memory, ours, self._pool, number))
        ends = [(hand.process, hand.connection) for hand in self._hands]
        self._finalizer = weakref.finalize(self, _dismiss, ends, os.getpid())


_ours: weakref.WeakSet[Connection] = weakref.WeakSet()  # this process's ends, of all teams


def _dismiss(ends: Sequence[tuple[Any, Connection]], pid: int) -> None:
    """End workers: they see that nobody reads; one that does not look is terminated."""
    if os.getpid() != pid:  # a forked child has no say
        return
    for _, connection in ends:
        connection.close()
    for process, _ in ends:
        process.join(_END_SECONDS)
        for end in (process.terminate, process.kill):
            if process.is_alive():
                end()
                process.join(_END_SECONDS)
        process.close()
