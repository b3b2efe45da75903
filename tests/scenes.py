"""Writers, collectors and expirers on one store, for `tests.scheduler` to interleave; and what must hold then.

The scenes are those of the protocol's model checker, and more, with the real code in place of its steps.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import lake
from lake import commit, guard, history
from lake.commit import Signature
from lake.format import draft, log, names, segment
from lake.repo import Lake
from tests.memory import DAY, GRACE, MemoryStore, blobs, keys_of, lake_on, rows
from tests.scheduler import Inline, Process, World

FULL = bool(os.environ.get("LAKE_TEST_FULL"))

Act = Callable[[Lake], object]


def over(letters: str, name: str = "a") -> Act:
    """Overwrite with a shard for each letter."""
    return lambda lk: lk.commit(name, rows(*letters), mode="overwrite", expect=None)


def append(letters: str, name: str = "a", txn: str | None = None) -> Act:
    return lambda lk: lk.commit(name, rows(*letters), mode="append", txn=txn)


def rollback(seq: int) -> Act:
    return lambda lk: lk.rollback("a", f"#{seq}")


def tag(seq: int) -> Act:
    return lambda lk: lk.tag(f"a@#{seq}", "kept")


def copy(name: str = "a") -> Act:
    return lambda lk: lk.copy(f"{name}@#1", "c")


def remove(lk: Lake) -> None:
    lk.remove("a")


def expire(lk: Lake) -> None:
    lk.expire("a", keep=1, dry_run=False)


def untag(lk: Lake) -> None:
    lk.untag("a", "kept")


def compact(lk: Lake) -> None:
    lk.compact("a")


def delete(letter: str) -> Act:
    return lambda lk: lk.delete_rows("a", f"key = '{letter}'")


def update(letter: str) -> Act:
    return lambda lk: lk.update_rows("a", rows(letter, x=7))


def drop(lk: Lake) -> None:
    lk.drop_columns("a", ["x"])


def pin(seq: int) -> Act:
    def act(lk: Lake) -> None:
        signature = Signature.of(None, None)
        history.pin(lk.refs, "a", lk.dataset(f"a@#{seq}").snapshot.entry, signature, single_writer=False)

    return act


def derive(letters: str) -> Act:
    samples = [(letter, {"x": 0}) for letter in letters]
    return lambda lk: lk.derive("a", lake.from_iterable(samples))


@dataclass(frozen=True)
class Scene:
    """Logs as they are at first ("-x y": two entries of which the first is expired), what happens, gc runs."""

    logs: tuple[str, ...]
    acts: tuple[Act, ...]
    collectors: tuple[int, ...] = (2,)  # runs of each
    tagged: bool = False
    runs: int = 290  # interleavings tried


OF_THE_MODEL = {
    "reuse": Scene(("-x y",), (over("x"),), runs=620),
    "reuse and expire": Scene(("x y",), (over("x"), expire)),
    "reuse, two collectors": Scene(("-x y",), (over("x"),), (2, 2)),
    "reuse, three runs": Scene(("-x y",), (over("x"),), (3,)),
    "rollback": Scene(("x y",), (rollback(1), expire), runs=620),
    "tag": Scene(("x y",), (tag(1), expire), runs=620),
    "append": Scene(("-x y",), (append("z"), expire)),
    "append, its data is garbage": Scene(("-z y",), (append("z"),), (3,)),
    "two appends": Scene(("y",), (append("p"), append("q"))),
    "overwrite and append": Scene(("-x y",), (over("x"), append("z"))),
    "overwrite, append, expire": Scene(("-x y",), (over("x"), append("z"), expire)),
    "inherit or not": Scene(("x",), (over("x"), over("y"), expire)),
    "two overwrites": Scene(("-x y",), (over("x"), over("xz"))),
    "late reply": Scene(("-x y",), (over("x"), over("y"), expire)),
    "copy": Scene(("x", "y"), (copy(), over("z"), expire)),
    "txn": Scene(("y",), (append("z", txn="t"), append("z", txn="t"), append("q")), runs=220),
    "txn and remove": Scene(("y",), (append("z", txn="t"), append("z", txn="t"), remove)),
    "remove": Scene(("y",), (remove, append("z"), over("y"))),
    "remove and tag": Scene(("y",), (remove, tag(1), over("y"))),
}
FURTHER = {
    "pin": Scene(("x y",), (pin(1), expire), runs=620),
    "untag and tag": Scene(("-x y",), (untag, tag(1), expire), tagged=True, runs=620),
    "append what the head has": Scene(("x",), (append("x"), over("y"), expire), (2, 2)),
    "append what the head got": Scene(
        ("-x y",), (over("x"), append("x"), over("y"), expire), (2, 2), runs=220
    ),
    "compact and append": Scene(("-x y",), (compact, append("x"), expire)),
    "delete and append": Scene(("-x xy",), (delete("x"), append("x"), expire), runs=100),
    "update and expire": Scene(("-x xy",), (update("x"), append("x"), expire), runs=200),
    "drop a column": Scene(("-x y",), (drop, over("x"), expire)),
    "derive garbage": Scene(("-x y",), (derive("x"), over("y"), expire), runs=100),
    "derive at once": Scene(("-x y",), (derive("x"), derive("x"), derive("xz"), expire), (2, 2), runs=100),
    "derive and remove": Scene(("y",), (derive("x"), remove, over("y")), runs=100),
    "many": Scene(("-x y",), (over("x"), append("z"), rollback(1), expire, expire), (2, 2), runs=220),
    "more": Scene(("x y", "-v w"), (copy(), over("y"), tag(1), expire, expire), (2, 2), runs=220),
    "most": Scene(("-x y",), (remove, over("x"), append("z"), expire, expire), (3, 2), runs=220),
    "twice and a copy": Scene(
        ("-x y", "v"), (over("x"), over("x"), copy("b"), expire, expire), (3, 2), runs=220
    ),
}
SCENES = OF_THE_MODEL | FURTHER

_STARTS: dict[tuple[tuple[str, ...], bool], dict[str, tuple[bytes, float]]] = {}
_NEEDS: dict[str, frozenset[str]] = {}
_READ: set[int] = set()  # how runs ended of which everything could be read
_ids = [itertools.count()]  # in place of random ones: a seed is a schedule


def start(scene: Scene) -> dict[str, tuple[bytes, float]]:
    """The store when the scene begins; everything in it is old."""
    found = _STARTS.get((scene.logs, scene.tagged))
    if found is None:
        _ids[0] = itertools.count()
        store = MemoryStore()
        lk = lake_on(store)
        for name, entries in zip("ab", scene.logs, strict=False):
            for entry in entries.split():
                lk.commit(name, rows(*entry.strip("-")))
            if scene.tagged:
                lk.tag(f"{name}@#1", "kept")
            if entries.startswith("-"):
                _bury(store, name)
        found = {key: (data, when - 10 * GRACE) for key, (data, when) in store.objects.items()}
        _STARTS[scene.logs, scene.tagged] = found
    return found


def _bury(store: MemoryStore, name: str) -> None:
    key = names.log_key(name, 1)
    store.put(key, log.encode_entry(log.tombstone(log.decode_entry(store.get(key), key))))


def collector(runs: int) -> Callable[[Process], None]:
    def body(process: Process) -> None:
        for _ in range(runs):
            with suppress(lake.StoreError, lake.ConflictError):
                lake_on(process).gc(dry_run=False, force=True)
            process.sleep(GRACE * process.world.random.choice((0, 0.5, 1)))

    return body


def play(scene: Scene, seed: int) -> World:
    """One run of the scene, to its end, with everything checked."""
    begin = start(scene)
    _ids[0] = itertools.count(1000)  # above those of the start
    world = World(begin, seed, _NEEDS)
    acting = [
        world.start(f"writer {n}", lambda store, act=act: act(lake_on(store)))
        for n, act in enumerate(scene.acts)
    ]
    for n, runs in enumerate(scene.collectors):
        world.start(f"collector {n}", collector(runs))
    before = {entry.txn for entry in lake_on(world.store).refs.entries("a")}
    world.run()
    check_log(world, before, acting)
    check_nothing_leaks(world)
    return world


def check_log(world: World, before: set[str], acting: Iterable[Process]) -> None:
    """An append is on top of its predecessor and in all later versions; a txn is there at most once."""
    entries = lake_on(world.store).refs.entries("a")[::-1]
    txns = [entry.txn for entry in entries]
    assert len(set(txns)) == len(txns), "a txn twice"
    for previous, entry in itertools.pairwise(entries):
        if entry.operation == "append" and previous.version and entry.version:
            held = world.needs.get(f"a@{previous.version}", frozenset())
            now = world.needs.get(f"a@{entry.version}", frozenset())
            lost = {stem for stem in held - now if stem.startswith("shards/")}
            assert not lost, f"append #{entry.seq} lost {lost}"
        assert entry.parent == previous.version


def check_nothing_leaks(world: World) -> None:
    """With everybody gone and time passing, runs of gc leave exactly what roots need; it can all be read."""
    store = world.store
    for _ in range(2):
        store.clock += GRACE + DAY
        lake_on(store).gc(dry_run=False, force=True)
    roots = frozenset(world.present())
    needed = frozenset().union(*(world.needs_of(*root) for root in roots))
    kept = blobs(store)
    assert {names.stem(key) for key in kept} == needed
    end = hash((roots, frozenset((key, store.objects[key][0]) for key in kept)))
    if end not in _READ:  # many runs end alike
        lk = lake_on(store)
        assert lk.verify("full").ok
        for name in lk.datasets():
            assert keys_of(lk, name)
        _READ.add(end)


PARSERS = SimpleNamespace()  # in place of one for each thread
parse_key = cache(names.parse_key)
check_name = cache(names.check_name)
decode_list = cache(guard._decode_list)


def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, computed once for arguments that look alike."""
    known: dict[Any, Any] = {}

    def remembered(*arguments: Any, **more: Any) -> Any:
        asked = *(each if isinstance(each, bytes) else repr(each) for each in arguments), repr(more)
        if asked not in known:
            known[asked] = function(*arguments, **more)
        return known[asked]

    return remembered


encode_segment = remembering(segment.encode_segment)
decode_segment = remembering(segment.decode_segment)


def one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pools, no pauses: a process does one thing at a time, when it is its turn. What is pure is remembered."""
    for module in ("refs", "ingest", "edit", "verify"):
        monkeypatch.setattr(f"lake.{module}.ThreadPoolExecutor", Inline)
    monkeypatch.setattr(commit.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(_ids[0])))
    monkeypatch.setattr("lake.where.sql._parsers", PARSERS)
    monkeypatch.setattr(names, "parse_key", parse_key)
    monkeypatch.setattr(names, "check_name", check_name)
    monkeypatch.setattr(guard, "_decode_list", decode_list)
    monkeypatch.setattr(draft, "encode_segment", encode_segment)
    for module in ("roots", "format.manifest"):
        monkeypatch.setattr(f"lake.{module}.decode_segment", decode_segment)


def try_all(name: str) -> None:
    """As many interleavings of a scene as it is worth, ten times as many at full size."""
    for seed in range(SCENES[name].runs * (10 if FULL else 1)):
        try:
            play(SCENES[name], seed)
        except BaseException as error:
            error.add_note(f"scene {name!r}, seed {seed}")
            raise
