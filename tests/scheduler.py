"""Processes that share a store in memory, interleaved by a seeded scheduler: one store call is one step.

Whoever is not chosen for long is a suspended process, whoever is never chosen again has crashed. Time passes in
steps of its own. Replies get lost, deletes take effect late or twice, within a grace. After every step that could
have lost something it is checked that every root's objects are stored.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any

from lake.errors import LakeError, StoreError
from lake.format import log, names
from lake.format.version import decode_version
from lake.refs import read_generation
from lake.roots import parts_in
from lake.stores.wrappers import _Around
from tests.memory import GRACE, MemoryStore

SIGNED_FOR = 900.0  # seconds after which a bucket refuses a request
SPEEDS = (0.02, 0.3, 1.0, 3.0)
NAPS = (0.0, 0.0, 0.3, 0.6, 1.1, 2.2, 3.3)  # graces for which a process is suspended; 0: for some steps only
TICK = GRACE / 4
PATIENCE = 16  # steps of time after which speeds change: four graces in which nobody does anything


class Killed(BaseException):
    """The process is no more."""


class Lost(AssertionError):
    """A root needs what is stored nowhere."""


def _baton() -> threading.Lock:
    """What is waited for with `acquire` and handed on with `release`: half as dear as a semaphore."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class Process(_Around):
    """One process: a thread that runs `body(store)`, where the store waits for its turn before every call."""

    def __init__(self, world: World, name: str, body: Callable[[Any], object]) -> None:
        super().__init__(world.store)  # type: ignore[arg-type]
        self.world, self.name = world, name
        self.turn = _baton()
        self.due = 0.0  # when it may go on
        self.stalled = 0  # steps until it may go on
        self.done = False
        self.error: LakeError | None = None
        self.in_root = False
        self.thread = threading.Thread(target=self._run, args=(body,), daemon=True)

    def _run(self, body: Callable[[Any], object]) -> None:
        self.turn.acquire()
        try:
            if not self.world.over:
                body(self)
        except LakeError as error:
            self.error = error
        except Killed:
            pass
        except BaseException as error:
            self.world.failure = error
        finally:
            self.done = True
            self.world.turn.release()

    @property
    def delicate(self) -> int:
        """How much likelier than elsewhere something happens to it now."""
        return 8 if self.in_root else 1

    def is_ready(self) -> bool:
        """Whether it can be its turn; asked once before each step."""
        self.stalled = max(0, self.stalled - 1)
        return not self.done and not self.stalled and self.due <= self.world.store.clock

    def wait(self) -> None:
        """Let others run."""
        self.world.turn.release()
        self.turn.acquire()
        if self.world.over:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.due = self.world.store.clock + seconds
        self.wait()

    def _do(self, verb: str, key: str, call: Callable[[], Any]) -> Any:
        signed = self.world.store.clock
        self.wait()
        self.world.trace.append((self.name, verb, key))
        late = self.world.store.clock - signed > SIGNED_FOR  # reads are signed anew and repeated
        if self.world.random.random() < self.world.failing * self.delicate:
            raise StoreError("503 SlowDown", retryable=True)
        if self.in_root and self.world.bucket and late and verb.startswith(("put", "copy")):
            raise StoreError("403 RequestTimeTooSkewed", retryable=True)
        result = call()
        if verb in ("put", "put_new", "delete") and key.startswith(("datasets/", "shards/", "manifests/")):
            self.world.check()
        if verb == "put_new" and self.world.random.random() < self.world.losing:
            raise StoreError("the reply was lost", retryable=True)
        return result

    @contextmanager
    def root_lease(self, *, exclusive: bool = False) -> Iterator[None]:
        held = self.world.roots
        if exclusive:
            while held and not self.world.bucket:
                self.wait()
            yield
            return
        held.append(self)
        self.in_root = True
        try:
            yield
        finally:
            self.in_root = False
            held.remove(self)

    def delete(self, keys: Any) -> dict[str, Exception]:
        """One step for each key; a request may take effect later, its reply being lost, or twice."""
        failed: dict[str, Exception] = {}
        for key in keys:
            fate = self.world.random.random()
            if fate < self.world.losing:
                self.world.late.append((key, self.world.store.clock + 0.9 * GRACE))
            if fate < self.world.losing / 2:
                failed[key] = StoreError("timed out", retryable=True)
                self._do("delete (late)", key, lambda: None)
            else:
                failed |= self._do("delete", key, lambda key=key: self.store.delete([key]))
        return failed


class World:
    """A store, processes, and the dice."""

    def __init__(
        self, objects: dict[str, tuple[bytes, float]], seed: int, needs: dict[str, frozenset[str]]
    ) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.store.objects = dict(objects)
        self.bucket = self.random.random() < 0.5
        self.losing = self.random.choice((0.0, 0.05, 0.2))  # how often replies get lost
        self.failing = self.random.choice((0.0, 0.0, 0.02))  # how often the store is too busy
        self.napping = self.random.choice((0.0, 0.02, 0.05, 0.1))  # how often a process is suspended
        self.moody = self.random.choice((0.002, 0.05))  # how often speeds change
        self.speed: dict[Any, float] = {}  # of each process, of time and of late deletes
        self.idle = 0  # steps of time since anything else happened
        self.needs = needs  # version id -> stems of all that it is made of; shared by all runs of a scene
        self.processes: list[Process] = []
        self.roots: list[Process] = []
        self.late: list[tuple[str, float]] = []  # deletes under way, and when they take effect at the latest
        self.trace: list[tuple[str, str, str]] = []
        self.turn = _baton()
        self.over = False
        self.failure: BaseException | None = None

    def start(self, name: str, body: Callable[[Any], object]) -> Process:
        made = Process(self, name, body)
        self.processes.append(made)
        made.thread.start()
        return made

    def run(self, steps: int = 1500) -> None:
        """Let the processes go on in some order, until all are done or have been given this many steps."""
        self.speed = {}
        try:
            for _ in range(steps):
                if self.idle == PATIENCE or self.random.random() < self.moody:
                    self.idle, self.speed = 0, {}
                alive = [each for each in self.processes if not each.done]
                if not alive:
                    break
                ready = [each for each in alive if each.is_ready()]
                if ready or self.late:
                    self._step(self._chosen([*ready, "time", *(["late"] if self.late else [])]))
                else:
                    self._skip(alive)
                if self.failure:
                    raise self.failure
        finally:
            self._end()

    def _chosen(self, choices: list[Any]) -> Any:
        """One of them; each has a speed for some time."""
        for each in choices:
            if each not in self.speed:
                self.speed[each] = self.random.choice(SPEEDS)
        return self.random.choices(choices, [self.speed[each] for each in choices])[0]

    def _skip(self, alive: list[Process]) -> None:
        """Nothing happens until the first of them may go on."""
        now = self.store.clock
        wake = {each: max(each.due, now + each.stalled * TICK) for each in alive}
        self.store.clock = min(wake.values())
        for each in alive:
            each.stalled = max(0, each.stalled - round((self.store.clock - now) / TICK))

    def _step(self, chosen: Any) -> None:
        self.idle = self.idle + 1 if chosen == "time" else 0
        if isinstance(chosen, Process) and self.random.random() < self.napping * chosen.delicate:
            nap = self.random.choice(NAPS)
            chosen.due = self.store.clock + GRACE * nap
            chosen.stalled = 0 if nap else self.random.randrange(20, 90)
            self.trace.append((chosen.name, "sleeps", ""))
        elif isinstance(chosen, Process):
            chosen.turn.release()
            self.turn.acquire()
        elif chosen == "late":
            key, _ = self.late.pop(self.random.randrange(len(self.late)))
            self._delete(key)
        else:
            self.store.clock += TICK * self.random.choice((0.3, 1.0, 1.01))
            for key, due in self.late:
                if due <= self.store.clock:
                    self._delete(key)
            self.late = [(key, due) for key, due in self.late if due > self.store.clock]

    def _delete(self, key: str) -> None:
        self.trace.append(("the network", "delete", key))
        self.store.delete([key])
        self.check()

    def _end(self) -> None:
        """Every process that is still alive crashes; what is under way takes effect."""
        self.over = True
        for each in self.processes:
            while not each.done:
                each.turn.release()
                self.turn.acquire()
        for key, _ in self.late:
            self.store.delete([key])
        self.late = []

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Every object of every root is stored in some generation."""
        stems = {names.stem(key) for key in self.store.objects}
        for where, version in self.present():
            missing = self.needs_of(where, version) - stems
            if missing:
                self.failure = Lost(f"{where} needs {sorted(missing)}")
                raise self.failure

    def present(self) -> Iterator[tuple[str, str]]:
        """Where each root is, and its version id; read straight from the bytes."""
        logs: dict[str, list[dict[str, Any]]] = {}
        pointers = []
        for key in sorted(self.store.objects):
            parsed = names.parse_key(key)
            if parsed and parsed.kind == "log":
                logs.setdefault(str(parsed.name), []).append(_said(self.store.get(key)))
            elif parsed and parsed.kind in ("tag", "pin", "derived"):
                pointers.append((key, str(parsed.name)))
        life = {}
        for name, entries in logs.items():
            assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1)), "a gap in the log"
            life[name] = next((e["seq"] + 1 for e in reversed(entries) if e["version"] is None), 1)
            for entry in entries[life[name] - 1 :]:
                if entry["operation"] != log.EXPIRED:
                    yield f"{name}@#{entry['seq']}", entry["version"]
        for key, name in pointers:
            document = _said(self.store.get(key))
            if document["born"] == life.get(name):
                yield f"{name} {key}", document["version"]

    def needs_of(self, where: str, version: str) -> frozenset[str]:
        """The stems of all that a version is made of, found out when it is first a root."""
        name = where.partition("@")[0].partition(" ")[0]
        if f"{name}@{version}" not in self.needs:
            self.needs[f"{name}@{version}"] = self._find_needs(name, version)
        return self.needs[f"{name}@{version}"]

    def _find_needs(self, name: str, version: str) -> frozenset[str]:
        keys = names.version_keys(name, version)
        try:
            document = decode_version(read_generation(self.store, keys, version), version)  # type: ignore[arg-type]
            found = {names.stem(keys(0))}
            for ref in document.segments:
                data = read_generation(self.store, names.segment_keys(ref.digest), ref.digest)  # type: ignore[arg-type]
                found.add(names.stem(names.segment_key(ref.digest)))
                found |= {names.stem(names.part_key(digest)) for digest, _ in parts_in(data, ref, document)}
        except LakeError as error:
            self.failure = Lost(f"{name}@{version}: {error}")
            raise self.failure from error
        return frozenset(found)


@cache
def _said(document: bytes) -> dict[str, Any]:
    """What a document says, which nobody changes."""
    said: dict[str, Any] = json.loads(document)
    return said


class Inline:
    """An executor that does everything at once, in the caller's thread: one process is one thread."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., Any], *items: Any) -> Iterator[Any]:
        return map(call, *items)

    def shutdown(self, **_: Any) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *exc_info: object) -> None: ...
