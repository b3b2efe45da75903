"""What `verify` finds of damage to any one stored object, and what reading and gc make of it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lake
from lake.format import names
from lake.format.documents import canonical
from lake.refs import Refs
from lake.repo import Lake
from lake.roots import reached, read_roots
from lake.stores import LocalStore
from lake.stores.wrappers import CountingStore
from lake.survey import BLOBS
from lake.verify import LEVELS, Level
from tests.damage import (
    WAYS,
    Damage,
    deleted,
    every_row,
    flipped,
    kind_of,
    replaced,
    rich_lake,
    sample_lake,
    table,
    truncated,
)
from tests.memory import MemoryStore, blobs, lake_on


@pytest.fixture
def lk() -> Lake:
    return sample_lake(MemoryStore())


def hurt_by(lk: Lake, key: str) -> set[str]:
    """The versions that need a blob, found by going through all of them."""
    found = set()
    for name in ("birds", "fish"):
        for entry in lk.log(name):
            document = lk.refs.version(name, str(entry.version))
            manifest = lk.refs.manifest(document)
            stems = {names.version_key(name, str(entry.version))}
            stems |= {names.segment_key(ref.digest) for ref in document.segments}
            stems |= {names.part_key(part.digest) for shard in manifest.shards() for part in shard.parts}
            if key in stems:
                found.add(f"{name}@{entry.version}")
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_a_sound_lake_has_no_problems(lk: Lake, level: Level):
    """At every level; a higher one reads more."""
    report = lk.verify(level)

    assert report.ok
    assert report.problems == ()
    assert lk.verify("full").bytes > lk.verify("sample").bytes > lk.verify("exists").bytes
    assert lk.verify("exists").objects > lk.verify("refs").objects


@pytest.mark.parametrize("damage", WAYS, ids=lambda damage: damage.__name__)
def test_every_damaged_blob_is_named_with_the_versions_that_it_hurts(lk: Lake, damage: Damage):
    """Exactly that object; gc refuses; reading raises or, where the damaged bytes are of no use, gives right rows."""
    whole: dict[str, tuple[bytes, float]] = dict(lk.store.objects)  # type: ignore[attr-defined]
    right = {name: every_row(lk, name) for name in ("birds", "fish")}
    kinds = {"truncated": "truncated", "flipped": "altered", "deleted": "missing"}
    raised = 0
    for key in sorted(blobs(lk.store)):
        store = MemoryStore()
        store.objects = dict(whole)
        damage(store, key)

        report = lake_on(store).verify("full")

        [problem] = report.problems
        assert not report.ok
        assert problem.key == key
        assert problem.kind == kinds.get(damage.__name__, problem.kind)
        assert set(problem.versions) == hurt_by(lk, key)
        with pytest.raises(lake.IntegrityError):
            lake_on(store).gc(dry_run=False, force=True, no_writers=True, grace=0)
        assert blobs(store) >= blobs(lk.store) - {key}
        for name, expected in right.items():
            hurt = f"{name}@{lk.dataset(name).version}" in problem.versions
            try:
                assert every_row(lake_on(store), name).equals(expected), "wrong rows"
            except (lake.IntegrityError, lake.NotFoundError):
                assert hurt
                raised += 1
    assert raised >= (len(blobs(lk.store)) // 2 if damage is truncated else len(blobs(lk.store)) - 4)


@pytest.mark.parametrize("damage", WAYS, ids=lambda damage: damage.__name__)
def test_every_damaged_document_is_named_or_harmless(lk: Lake, damage: Damage):
    """Log entries, tags and names have no digest: what verify cannot see changes no row."""
    whole: dict[str, tuple[bytes, float]] = dict(lk.store.objects)  # type: ignore[attr-defined]
    right = {name: every_row(lk, name) for name in ("birds", "fish")}
    seen = 0
    for key in sorted(whole.keys() - blobs(lk.store)):
        store = MemoryStore()
        store.objects = dict(whole)
        damage(store, key)

        problems = {problem.key for problem in lake_on(store).verify("refs").problems}

        assert problems <= {key}, (key, problems)
        seen += key in problems
        if problems or key.endswith("/tags/v1.json"):
            continue
        for name, expected in right.items():
            assert every_row(lake_on(store), name).equals(expected), key
    assert seen >= {"deleted": 7, "flipped": 3}.get(damage.__name__, 8)


@pytest.mark.parametrize("damage", WAYS, ids=lambda damage: damage.__name__)
def test_nothing_in_a_lake_can_be_damaged_unseen_and_collected(damage: Damage):
    """Each object of every kind: what is damaged is named, rows are right or refused, and gc takes nothing needed.

    Exceptions prove themselves: a deleted tag is no tag, and a bit may flip in an author's name.
    """
    whole = rich_lake(MemoryStore())
    objects: dict[str, tuple[bytes, float]] = dict(whole.store.objects)  # type: ignore[attr-defined]
    needed = reached(whole.refs, read_roots(whole.refs)).keys()
    references = ("birds@#1", "birds@#2", "birds", "birds@v1", "fish", "owls", "wrens")
    right = {reference: every_row(whole, reference) for reference in references}
    named: Counter[str] = Counter()
    for key in sorted(objects):
        store = MemoryStore()
        store.objects = dict(objects)
        damage(store, key)
        kind = kind_of(key)

        problems = lake_on(store).verify("full").problems

        assert {problem.key for problem in problems} <= {key}
        named[kind] += len(problems)
        for reference, rows in right.items():
            with suppress(lake.IntegrityError, lake.NotFoundError):
                found = every_row(lake_on(store), reference)
                assert found.equals(rows) or kind in ("tag", "log"), (key, reference)
        after = MemoryStore()
        after.objects = dict(store.objects)
        with suppress(lake.IntegrityError, lake.FormatError, lake.NotFoundError):
            lake_on(after).gc(dry_run=False, force=True, no_writers=True, grace=0)
            assert not problems or kind in UNROOTED, (key, "was collected over")
        taken = store.objects.keys() - after.objects.keys()
        lost = {names.stem(each) for each in taken} & needed
        assert not lost or (damage is deleted and kind in ("tag", "pin", "derived")), (key, lost)
    there = Counter(kind_of(key) for key in objects if kind_of(key) not in BLOBS or names.stem(key) in needed)
    unseen = {kind: there[kind] - named[kind] for kind in there}
    assert not any(unseen[kind] for kind in ("version", "segment", "part"))
    if damage is truncated:
        assert {kind for kind in unseen if unseen[kind]} == {"head"}
    if damage is replaced:
        assert {kind for kind in unseen if unseen[kind]} <= {"head", "tag", "derived"}
    if damage is deleted:
        assert {kind for kind in unseen if unseen[kind]} == {
            "head",
            "tag",
            "pin",
            "derived",
            "txn",
            "condemned",
        }


UNROOTED = ("name", "txn", "head", "condemned")  # kinds of which no version hangs


def test_an_older_hint_is_no_damage_and_a_newer_one_is_a_lost_entry(lk: Lake):
    """Entries are never deleted, so a hint beyond the log's end is a witness."""
    hint = names.head_key("birds")
    for text in (b"1", b"", b"nonsense", b"-4", b"9" * 40):
        lk.store.put(hint, text)
        assert lake_on(lk.store).verify("refs").ok, text
        assert lake_on(lk.store).dataset("birds").snapshot.entry.seq == 3
    lk.store.put(hint, b"4")

    [problem] = lake_on(lk.store).verify("refs").problems

    assert (problem.key, problem.kind) == (names.log_key("birds", 4), "missing")


def test_a_hint_beyond_the_log_is_no_error_for_readers(lk: Lake, tmp_path: Path):
    """It is best effort: the head is found all the same, in a bucket and in a folder."""
    folder = lake.open(tmp_path)
    folder.commit("birds", table(0, 5))
    for each in (lk, folder):
        each.store.put(names.head_key("birds"), b"7")
        newest = Refs(each.store).newest("birds")
        assert newest == len(Refs(each.store).entries("birds")) > 0


def test_one_dataset_can_be_verified_alone(lk: Lake):
    """Damage elsewhere is not reported; an unknown name is not found."""
    [part] = {
        key
        for key in blobs(lk.store)
        if hurt_by(lk, key) == {f"fish@{lk.dataset('fish').version}"} and "shards/" in key
    }
    flipped(lk.store, part)  # type: ignore[arg-type]

    assert lk.verify("full", "birds").ok
    assert [problem.key for problem in lk.verify("full", "fish").problems] == [part]
    with pytest.raises(lake.NotFoundError):
        lk.verify(name="birdz")
    with pytest.raises(ValueError, match="level"):
        lk.verify("complete")  # type: ignore[arg-type]


def test_a_sound_copy_beside_a_damaged_one_is_enough(lk: Lake):
    """Generations: verify is content, readers turn to the sound one, whatever the damage of the first is."""
    right = every_row(lk, "birds")
    for damage in WAYS:
        store = MemoryStore()
        store.objects = dict(lk.store.objects)  # type: ignore[attr-defined]
        for key in blobs(store):
            folder, _, file = key.rpartition("/")
            store.copy(key, f"{folder}/{file.replace('.', '.g1.', 1)}")
            damage(store, key)
        assert lake_on(store).verify("full").ok
        assert every_row(lake_on(store), "birds").equals(right)


def test_expired_versions_are_not_looked_for(lk: Lake):
    """What was given up is no damage; what a tag keeps is."""
    first = lk.log("birds")[-1]
    lk.expire("birds", keep=1, dry_run=False)
    lk.gc(dry_run=False, force=True, no_writers=True, grace=0)

    assert lake_on(lk.store).verify("full").ok
    assert lk.store.head(names.version_key("birds", str(first.version))) is None
    lk.store.delete([names.version_key("birds", str(lk.tags("birds")["v1"]))])
    assert [problem.kind for problem in lake_on(lk.store).verify().problems] == ["missing"]


def test_a_dataset_whose_first_commit_died_is_no_damage(lk: Lake):
    """Its document lies there without a log entry: garbage, which gc takes."""
    lk.store.put(names.version_key("new", "ab" * 32), b"{}")

    assert lk.verify("full").ok


def test_an_unknown_document_is_reported(lk: Lake):
    """It may be of a newer release, or in the way; either way somebody should know."""
    lk.store.put("datasets/birds/branches/main.json", b"{}")
    key = names.log_key("birds", 2)
    lk.store.put(
        key, canonical({**json.loads(lk.store.get(key)), "needs": {"read": ["overlays"], "write": []}})
    )

    found = {problem.key: problem.kind for problem in lake_on(lk.store).verify("refs").problems}

    assert found == {"datasets/birds/branches/main.json": "unreadable", key: "unreadable"}


def test_the_parts_of_all_versions_are_found_by_one_listing():
    """`exists` asks for no part, and reads each document once."""
    store = CountingStore(MemoryStore())
    lk = lake_on(store)
    lk.commit("birds", table(0, 5000), shard_bytes="16KiB")
    for first in range(5000, 5500, 100):
        lk.commit("birds", table(first, first + 100), mode="append")
    store.reset()

    lk.verify("exists")

    assert not any(key.startswith("shards/") for _, key in store.calls)
    assert store.counts["list"] == 2
    assert len([key for _, key in store.calls if key.startswith("manifests/")]) == 6


def test_a_lake_in_a_folder_is_verified_in_place(tmp_path: Path):
    """Parts are mapped, each read once; a flipped bit on the disk is found and read as damage."""
    lk = lake.open(tmp_path)
    lk.commit("birds", table(0, 3000), shard_bytes="16KiB")
    assert lk.verify("full").ok
    part = sorted((tmp_path / "shards").glob("*/*.arrow"))[0]
    data = bytearray(part.read_bytes())
    data[-200] ^= 1
    part.chmod(0o644)
    part.write_bytes(data)

    [problem] = lake.open(tmp_path).verify("full").problems

    assert (problem.key, problem.kind) == (names.part_key(part.stem), "altered")
    with pytest.raises(lake.IntegrityError):
        lake.open(tmp_path).gc()


def test_who_may_only_read_verifies_all_the_same(lk: Lake):
    """The note for gc is left where that is allowed, and nothing else is written."""
    memory: Any = lk.store
    flipped(memory, sorted(key for key in blobs(memory) if key.startswith("shards/"))[0])

    def refuse(key: str, data: Any) -> bool:
        raise lake.StoreError("403: not allowed")

    memory.put_new = memory.put = refuse

    assert len(lk.verify("full").problems) == 1


def test_no_lake_is_not_found(tmp_path: Path):
    """An empty folder is no lake, and no damaged one."""
    with pytest.raises(lake.NotFoundError):
        lake.open(tmp_path).verify()
    assert not list(LocalStore(tmp_path).list())
