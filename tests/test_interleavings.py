"""Writers, collectors and expirers on one store, interleaved in thousands of ways: nothing is ever lost.

Over 10,000 interleavings in all, with those of `test_interleavings_further`; the scenes are in `tests.scenes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import lake
from lake import gc, guard
from lake.format import log, names
from tests import scenes
from tests.memory import GRACE
from tests.scenes import FULL, SCENES, play
from tests.scheduler import Lost, Process


@pytest.fixture(autouse=True)
def _one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes.one_thread_each(monkeypatch)


def test_there_are_ten_thousand():
    """Of different schedules: each scene's seeds."""
    assert sum(scene.runs for scene in SCENES.values()) >= 10_000


@pytest.mark.parametrize("scene", scenes.OF_THE_MODEL)
def test_nothing_is_lost_however_processes_interleave(scene: str):
    """Suspended writers and sweepers, crashes, lost replies, late and repeated deletes among them."""
    scenes.try_all(scene)


# --- the test of the test ---------------------------------------------------------------------


def _no_lists(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard.Guard, "_read_lists", lambda self: self.store.now())


def _no_second_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard.Guard, "_look_again", lambda self: setattr(self, "_checked_at", self.store.now()))


def _half_a_look_counts(patch: pytest.MonkeyPatch) -> None:
    read = guard.Guard._read_lists

    def and_count(self: Any) -> float:
        self._checked_at = read(self)
        return self._checked_at

    patch.setattr(guard.Guard, "_read_lists", and_count)


def _nothing_secured(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard.Guard, "secure", lambda self, objects: None)


def _tags_are_no_roots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("lake.roots.pointers", lambda refs, name, listed: [])


def _roots_read_once(patch: pytest.MonkeyPatch) -> None:
    read = gc.read_roots
    seen: dict[Any, Any] = {}

    def once(refs: Any) -> Any:
        world = refs.store.world if isinstance(refs.store, Process) else refs
        if (id(world), refs.store) not in seen:
            seen[id(world), refs.store] = read(refs)
        return seen[id(world), refs.store]

    patch.setattr(gc, "read_roots", once)


def _creates_land_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.scheduler.SIGNED_FOR", 100 * GRACE)


def _no_exclusive_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Process, "root_lease", lambda self, exclusive=False: contextlib.nullcontext())


def _head_is_expired(patch: pytest.MonkeyPatch) -> None:
    from lake.refs import Refs

    def all_of_it(refs: Refs, name: str, **_: Any) -> None:
        for entry in refs.entries(name):
            if entry.version is not None and entry.operation != log.EXPIRED:
                refs.store.put(names.log_key(name, entry.seq), log.encode_entry(log.tombstone(entry)))

    patch.setattr("lake.expire.expire", all_of_it)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    _no_lists: "reuse, three runs",
    _no_second_look: "reuse",
    _half_a_look_counts: "reuse",
    _nothing_secured: "tag",
    _tags_are_no_roots: "tag",
    _roots_read_once: "reuse",
    _creates_land_late: "reuse",
    _no_exclusive_lease: "reuse",
    _head_is_expired: "append",
}


def found_within(scene: str, runs: int) -> int | None:
    """After how many runs a loss was found."""
    for seed in range(runs):
        try:
            play(SCENES[scene], seed)
        except (Lost, AssertionError, lake.IntegrityError, lake.NotFoundError):
            return seed + 1
    return None


SOON = [
    _no_lists,
    _no_second_look,
    _tags_are_no_roots,
    _roots_read_once,
    _creates_land_late,
    _head_is_expired,
]


@pytest.mark.parametrize("mutant", list(MUTANTS) if FULL else SOON, ids=lambda m: m.__name__)
def test_a_rule_that_is_dropped_is_missed(mutant: Callable[[pytest.MonkeyPatch], None]):
    """The same runs do find the loss once a rule is switched off, so that finding none means something.

    What these runs find too seldom (waiting a grace, keeping lists, one sweeper, the log's end last, what a commit
    takes over from a head that it then leaves) has tests of its own in `test_gc`.
    """
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)

        assert found_within(MUTANTS[mutant], 10_000 if FULL else 2_000)
