"""Whatever is done to a lake in a folder, in whatever order: every version that something names reads back equal."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lake
from lake import _os, commit, history
from lake.commit import Signature
from lake.dataset import Dataset
from lake.format import names
from lake.refs import Refs
from lake.repo import Lake
from lake.roots import reached, read_roots
from lake.snapshot import Snapshot
from lake.stores import LocalStore
from lake.stores.wrappers import FaultStore
from tests.memory import DAY, GRACE, blobs

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
NAMES = ("a", "b")
SOURCES: dict[str, Any] = {"sources": []}  # what a derived pointer says besides

datasets = st.sampled_from(NAMES)
keys = st.lists(st.integers(0, 9), min_size=1, max_size=4)
values = st.integers(0, 3)


@dataclass(frozen=True)
class State:
    """What a version holds: rows of (key, x) and, if there is a column y, its values."""

    rows: tuple[tuple[str, int], ...]
    y: tuple[int | None, ...] | None = None

    def table(self) -> pa.Table:
        columns = {
            "key": pa.array([key for key, _ in self.rows], pa.large_string()),
            "x": pa.array([x for _, x in self.rows], pa.int64()),
        }
        return pa.table(columns if self.y is None else {**columns, "y": pa.array(self.y, pa.int64())})

    def only(self, keep: Callable[[int], bool]) -> State:
        """These rows of it."""
        kept = [n for n in range(len(self.rows)) if keep(n)]
        return State(tuple(self.rows[n] for n in kept), self.y and tuple(self.y[n] for n in kept))


@dataclass
class History:
    """A dataset as it should be: its log, where None is a removal, and what tags and pins name."""

    entries: list[State | None] = field(default_factory=list)
    expired: set[int] = field(default_factory=set)  # seqs
    tags: dict[str, int] = field(default_factory=dict)
    pins: dict[str, int] = field(default_factory=dict)  # version id -> seq
    derived: dict[str, int] = field(default_factory=dict)  # fingerprint -> seq
    ids: dict[int, str] = field(default_factory=dict)  # seq -> version id

    @property
    def head(self) -> State | None:
        return self.entries[-1] if self.entries else None

    @property
    def born(self) -> int:
        return max((seq for seq, state in enumerate(self.entries, 1) if state is None), default=0) + 1

    def alive(self) -> list[int]:
        """Seqs of the present life whose versions can be read."""
        kept = {self.ids[seq] for seq in (*self.tags.values(), *self.pins.values())}
        return [
            seq
            for seq in range(self.born, len(self.entries) + 1)
            if seq not in self.expired or self.ids[seq] in kept
        ]


def table(found: list[int], x: int) -> pa.Table:
    return State(tuple((f"k{n}", x) for n in found)).table()


class LakeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lake-machine-"))
        self.root = self.folder / "lake"
        self.histories = {name: History() for name in NAMES}
        self.handles: list[Lake] = []
        self.turn = 0

    @initialize(key=keys)
    def begin(self, key: list[int]) -> None:
        self.handles = [self.open(), self.open()]
        self.change("a", lambda lk: lk.commit("a", table(key, 0)), State(tuple((f"k{n}", 0) for n in key)))

    def teardown(self) -> None:
        if self.handles:
            self.check_nothing_leaks()
        shutil.rmtree(self.folder)

    # --- changes ------------------------------------------------------------------------------

    @rule(name=datasets, key=keys, x=values)
    def append(self, name: str, key: list[int], x: int) -> None:
        old, new = self.histories[name].head, tuple((f"k{n}", x) for n in key)
        state = State(new) if old is None else State(old.rows + new, old.y and old.y + (None,) * len(new))
        if old is not None and old.y == () and not old.rows:
            state = State(new, (None,) * len(new))
        self.change(name, lambda lk: lk.commit(name, table(key, x), mode="append"), state)

    @rule(name=datasets, key=keys, x=values)
    def overwrite(self, name: str, key: list[int], x: int) -> None:
        state = State(tuple((f"k{n}", x) for n in key))
        self.change(name, lambda lk: lk.commit(name, table(key, x), mode="overwrite"), state)

    @rule(name=datasets, x=values)
    def delete(self, name: str, x: int) -> None:
        if old := self.histories[name].head:
            state = old.only(lambda n: old.rows[n][1] != x)
            self.change(name, lambda lk: lk.delete_rows(name, f"x = {x}"), state)

    @rule(name=datasets, x=values, which=st.integers(0, 100))
    def update(self, name: str, x: int, which: int) -> None:
        old = self.histories[name].head
        if old is None or not old.rows:
            return
        key = old.rows[which % len(old.rows)][0]
        state = State(tuple((k, x if k == key else was) for k, was in old.rows), old.y)
        self.change(name, lambda lk: lk.update_rows(name, State(((key, x),)).table()), state)

    @rule(name=datasets)
    def add_column(self, name: str) -> None:
        old = self.histories[name].head
        if old is None or old.y is not None or not old.rows:
            return
        state = State(old.rows, tuple(2 * x for _, x in old.rows))
        self.change(
            name,
            lambda lk: lk.add_columns(name, lambda batch: {"y": [2 * x for x in batch["x"].to_pylist()]}),
            state,
        )

    @rule(name=datasets)
    def drop_column(self, name: str) -> None:
        old = self.histories[name].head
        if old is not None and old.y is not None:
            self.change(name, lambda lk: lk.drop_columns(name, ["y"]), State(old.rows))

    @rule(name=datasets)
    def compact(self, name: str) -> None:
        if old := self.histories[name].head:
            self.change(name, lambda lk: lk.compact(name), old)

    @rule(name=datasets, which=st.integers(0, 100))
    def rollback(self, name: str, which: int) -> None:
        found = self.histories[name]
        if found.head is None:
            return
        seq = found.alive()[which % len(found.alive())]
        self.change(name, lambda lk: lk.rollback(name, f"#{seq}"), found.entries[seq - 1])

    @rule()
    def copy(self) -> None:
        source, target = self.histories["a"], self.histories["b"]
        if source.head is not None and target.head is None:
            self.change("b", lambda lk: lk.copy("a@head", "b"), source.head)

    @rule(name=datasets)
    def remove(self, name: str) -> None:
        found = self.histories[name]
        if found.head is not None:
            self.handle.remove(name)
            found.entries.append(None)
            found.tags, found.pins, found.derived = {}, {}, {}

    # --- roots --------------------------------------------------------------------------------

    @rule(name=datasets, label=st.sampled_from(["one", "two"]), which=st.integers(0, 100))
    def tag(self, name: str, label: str, which: int) -> None:
        found = self.histories[name]
        if found.head is None or label in found.tags:
            return
        seq = found.alive()[which % len(found.alive())]
        self.handle.tag(f"{name}@#{seq}", label)
        found.tags[label] = seq

    @rule(name=datasets, label=st.sampled_from(["one", "two"]))
    def untag(self, name: str, label: str) -> None:
        if self.histories[name].tags.pop(label, None) is not None:
            self.handle.untag(name, label)

    @rule(name=datasets, which=st.integers(0, 100))
    def pin(self, name: str, which: int) -> None:
        found = self.histories[name]
        if found.head is None:
            return
        seq = found.alive()[which % len(found.alive())]
        lk = self.handle
        history.pin(lk.refs, name, lk.refs.entry(name, seq), Signature.of(None, None), single_writer=False)
        found.pins[found.ids[seq]] = seq

    @rule(name=datasets)
    def unpin(self, name: str) -> None:
        found = self.histories[name]
        for version in list(found.pins):
            history.unpin(self.handle.refs, name, version)
            del found.pins[version]

    @rule(name=datasets, which=st.integers(0, 100))
    def derive(self, name: str, which: int) -> None:
        """Point from a pipeline to a version that is not expired; where the pipeline points already, it stays so."""
        found, refs = self.histories[name], self.handle.refs
        if found.head is None:
            return
        alive = [seq for seq in found.alive() if seq not in found.expired]
        seq, fingerprint = alive[which % len(alive)], f"{which % 2}" * 64
        key, signature = names.derived_key(name, fingerprint), Signature.of(None, None)
        history.put_root(refs, name, refs.entry(name, seq), key, signature, single_writer=False, says=SOURCES)
        found.derived.setdefault(fingerprint, seq)

    @rule(name=datasets, keep=st.integers(1, 3))
    def expire(self, name: str, keep: int) -> None:
        found = self.histories[name]
        if found.head is None:
            return
        going = {entry.seq for entry in self.handle.expire(name, keep=keep, dry_run=False)}
        kept = {found.ids[seq] for seq in (*found.tags.values(), *found.pins.values())}
        fresh = [seq for seq in range(found.born, len(found.entries) + 1) if seq not in found.expired]
        assert going == {seq for seq in fresh[:-keep] if found.ids[seq] not in kept}
        found.expired |= going
        readable = {found.ids[seq] for seq in found.alive()}
        found.derived = {which: seq for which, seq in found.derived.items() if found.ids[seq] in readable}

    # --- gc and time --------------------------------------------------------------------------

    @rule(dry_run=st.booleans())
    def gc(self, dry_run: bool) -> None:
        """Condemn, or sweep what is due."""
        self.handle.gc(dry_run=dry_run, force=True)

    @rule(days=st.sampled_from([1, 3, 4, 7, 8]))
    def pass_time(self, days: int) -> None:
        self.age(days * DAY)

    @rule(jump=st.floats(-0.49, 0.49))
    def clock_jumps(self, jump: float) -> None:
        """The clock is set, by less than half a grace."""
        self.age(jump * GRACE)

    # --- trouble ------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.handles[which] = self.open()

    @rule(name=datasets, key=keys, at=st.integers(0, 40), fault=st.sampled_from(["dead", "lost", "raise"]))
    def crash(self, name: str, key: list[int], at: int, fault: Any) -> None:
        """A commit that fails at some store call: it landed, or it did not."""
        before = len(self.histories[name].entries)
        faulty = Lake(FaultStore(LocalStore(self.root), {at: fault}), self.handle.settings, progress=False)  # type: ignore[arg-type]
        with contextlib.suppress(lake.LakeError):
            faulty.commit(name, table(key, 7), mode="overwrite")
        if self.open().refs.newest(name) > before:
            self.record(name, State(tuple((f"k{n}", 7) for n in key)))

    @precondition(lambda self: len(self.handles) == 2)
    @rule()
    def another_writer(self) -> None:
        """The other handle goes on from here: what it remembers may be old."""
        self.turn += 1

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def everything_named_reads_back(self) -> None:
        lk = self.open() if self.handles else None
        for name, found in self.histories.items() if lk else ():
            assert lk is not None
            log = lk.refs.entries(name)
            assert [entry.seq for entry in log] == list(range(len(found.entries), 0, -1))
            if found.head is None:
                assert name not in lk.datasets()
                continue
            for seq in found.alive():
                self.check_equal(lk, f"{name}@#{seq}", found.entries[seq - 1])
            for label, seq in found.tags.items():
                self.check_equal(lk, f"{name}@{label}", found.entries[seq - 1])
            for fingerprint, seq in found.derived.items():
                said = lk.refs.document(names.derived_key(name, fingerprint), "version")
                assert said["version"] == found.ids[seq]
                snapshot = Snapshot(lk.refs, lk.cache, name, lk.refs.entry(name, seq))
                self.check_rows(Dataset(lk, snapshot), found.entries[seq - 1])
            for seq in set(range(found.born, len(found.entries) + 1)) - set(found.alive()):
                with pytest.raises(lake.VersionExpired):
                    lk.dataset(f"{name}@#{seq}")

    def check_equal(self, lk: Lake, reference: str, state: State | None) -> None:
        self.check_rows(lk.dataset(reference), state)

    def check_rows(self, dataset: Dataset, state: State | None) -> None:
        assert state is not None
        found = dataset.take(list(range(len(dataset))))
        assert found.to_pydict() == state.table().to_pydict(), dataset

    def check_nothing_leaks(self) -> None:
        """With nobody writing and no grace, what is stored is what is reachable, and whole."""
        lk = self.open()
        lk.gc(dry_run=False, force=True, no_writers=True, grace=0)
        refs = Refs(LocalStore(self.root))
        assert {names.stem(key) for key in blobs(lk.store)} == reached(refs, read_roots(refs)).keys()
        assert lk.verify("full").ok
        self.everything_named_reads_back()

    # --- inside -------------------------------------------------------------------------------

    @property
    def handle(self) -> Lake:
        """The lake as one of two writers has it open."""
        return self.handles[self.turn % 2]

    def open(self) -> Lake:
        return lake.open(self.root, cache_dir=self.folder / "cache", progress=False)

    def change(self, name: str, act: Callable[[Lake], Any], state: State | None) -> None:
        """Do it; the log grows by what it gave, or nothing changed."""
        before = len(self.histories[name].entries)
        act(self.handle)
        if self.open().refs.newest(name) > before:
            self.record(name, state)
        else:
            assert state == self.histories[name].head

    def record(self, name: str, state: State | None) -> None:
        found = self.histories[name]
        found.entries.append(state)
        seq = len(found.entries)
        found.ids[seq] = str(self.open().refs.entry(name, seq).version)

    def age(self, seconds: float) -> None:
        """Let everything stored be so much older."""
        for place, _, files in os.walk(self.root):
            for file in files:
                path = Path(place, file)
                when = path.stat().st_mtime - seconds
                os.utime(path, (when, when))


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk need not keep it, and nobody waits."""
    monkeypatch.setattr(_os, "fsync", lambda fd: None)
    monkeypatch.setattr(_os, "fsync_dir", lambda path: None)
    monkeypatch.setattr(commit, "_PAUSE", (0.0, 0.0))


@pytest.mark.usefixtures("_no_disk")
class TestLakeMachine(LakeMachine.TestCase):
    settings = settings(
        max_examples=300 if FULL else 12,
        stateful_step_count=40 if FULL else 25,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
