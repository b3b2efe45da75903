"""What `repair` mends, what it gives up only when told, and what it never touches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lake
from lake.cache import Cache
from lake.commit import Signature
from lake.format import names
from lake.repair import repair
from lake.repo import Lake
from lake.stores.wrappers import FaultStore
from tests.damage import WAYS, Damage, deleted, every_row, flipped, sample_lake, table, truncated
from tests.memory import MemoryStore, blobs, keys_of, lake_on


@pytest.fixture
def lk() -> Lake:
    return sample_lake(MemoryStore())


def copy_of(store: Any) -> MemoryStore:
    made = MemoryStore()
    made.objects = dict(store.objects)
    return made


def kinds_of(lk: Lake) -> dict[str, str]:
    """The kind of each blob that `birds` needs at its head."""
    head = lk.dataset("birds").snapshot
    found = {names.version_key("birds", head.version): "version"}
    found |= {names.segment_key(ref.digest): "segment" for ref in head.document.segments}
    return found | {
        names.part_key(part.digest): "part" for shard in head.manifest.shards() for part in shard.parts
    }


@pytest.mark.parametrize("damage", WAYS, ids=lambda damage: damage.__name__)
def test_every_damaged_blob_is_fetched_from_another_copy(lk: Lake, damage: Damage):
    """The damaged object stays as it is; a sound copy is stored beside it, and everything reads as before."""
    mirror = copy_of(lk.store)
    right = every_row(lk, "birds")
    for key in sorted(kinds_of(lk)):
        store = copy_of(lk.store)
        damage(store, key)
        before = dict(store.objects)

        told = lake_on(store).repair("birds", source=lake_on(mirror))
        assert {k: v for k, v in store.objects.items() if not k.startswith("gc/")} == before
        done = lake_on(store).repair("birds", source=lake_on(mirror), dry_run=False)

        assert told.fetched == done.fetched == (key,)
        assert (done.lost, done.entry, done.rows_lost) == ((), None, 0)
        assert lake_on(store).verify("full").ok
        assert all(store.objects[k] == held for k, held in before.items()), "nothing is edited or deleted"
        assert every_row(lake_on(store), "birds").equals(right)
        lake_on(store).gc(dry_run=False, force=True, no_writers=True, grace=0)
        assert every_row(lake_on(store), "birds").equals(right)


@pytest.mark.parametrize("damage", WAYS, ids=lambda damage: damage.__name__)
def test_giving_up_a_part_keeps_every_row_of_every_other_shard(lk: Lake, damage: Damage):
    """Only the lost shard's rows go, in a new version that says so; the old versions stay in the log."""
    right = every_row(lk, "birds")
    head = lk.dataset("birds").snapshot
    starts = head.manifest.starts
    for number, shard in enumerate(head.manifest.shards()):
        store = copy_of(lk.store)
        [part] = shard.parts
        damage(store, names.part_key(part.digest))

        done = lake_on(store).repair("birds", drop=True, dry_run=False)

        assert done.rows_lost == shard.rows
        assert done.entry is not None
        assert (done.entry.seq, done.entry.operation, done.entry.rows_removed) == (4, "repair", shard.rows)
        assert part.digest in str(done.entry.message)
        mask = pa.array([not starts[number] <= row < starts[number + 1] for row in range(len(right))])
        assert every_row(lake_on(store), "birds").equals(right.filter(mask))
        assert [entry.seq for entry in lake_on(store).log("birds")] == [4, 3, 2, 1]
        lake_on(store).untag("birds", "v1")
        lake_on(store).expire("birds", keep=1, dry_run=False)
        assert lake_on(store).verify("full", "birds").ok


def test_bytes_that_were_cut_short_on_their_way_are_no_damage(lk: Lake):
    """One bad read of any call, while another part is lost, makes `drop` give up no row more than that part's."""
    [*_, last] = lk.dataset("birds").snapshot.manifest.shards()
    lk.store.delete([names.part_key(part.digest) for part in last.parts])
    calm = FaultStore(copy_of(lk.store))  # type: ignore[arg-type]
    lake_on(calm).repair("birds", drop=True, dry_run=False)
    for call in range(len(calm.calls)):
        cut = FaultStore(copy_of(lk.store), {call: "truncate"})  # type: ignore[arg-type]
        try:
            done = lake_on(cut).repair("birds", drop=True, dry_run=False)
        except lake.LakeError:
            continue  # it refused: nothing is lost

        assert done.rows_lost == last.rows, f"call {call}"


@pytest.mark.parametrize("damage", WAYS, ids=lambda damage: damage.__name__)
def test_giving_up_a_segment_or_document_keeps_the_rest(lk: Lake, damage: Damage):
    """A lost segment costs its shards; a lost document all that came since the version before."""
    for key, kind in kinds_of(lk).items():
        if kind == "part":
            continue
        store = copy_of(lk.store)
        damage(store, key)

        done = lake_on(store).repair("birds", drop=True, dry_run=False)

        rows = every_row(lake_on(store), "birds")
        assert len(rows) + done.rows_lost == 2700
        assert len(rows) >= 100 if kind == "segment" else len(rows) == 2600
        assert pc.all(pc.is_in(rows["key"], table(0, 2700)["key"].cast(rows["key"].type))).as_py()


def test_without_drop_nothing_is_given_up(lk: Lake):
    """What no source has is reported as lost, and nothing is written."""
    store: Any = lk.store
    flipped(store, sorted(key for key in blobs(store) if key.startswith("shards/"))[0])
    before = {key: held for key, held in store.objects.items() if not key.startswith("gc/")}

    for drop, dry_run in ((False, False), (False, True), (True, True)):
        found = lk.repair("birds", drop=drop, dry_run=dry_run)
        assert len(found.lost) == 1
        assert (found.fetched, found.entry) == ((), None)
    assert {key: held for key, held in store.objects.items() if not key.startswith("gc/")} == before


def test_what_the_cache_has_need_not_be_lost(tmp_path: Path):
    """Parts and documents that this machine has fetched are sound copies."""
    store = MemoryStore()
    lk = sample_lake(store)
    right = every_row(lk, "birds")
    head = lk.dataset("birds").snapshot
    cache = Cache(tmp_path / "cache", 2**30)
    for shard in head.manifest.shards():
        for part in shard.parts:
            key = names.part_key(part.digest)
            cache.file(part.digest, part.bytes, lambda sink, key=key: sink.write(store.get(key)))  # type: ignore[misc]
    for ref in head.document.segments:
        cache.blob(ref.digest, lambda ref=ref: store.get(names.segment_key(ref.digest)))  # type: ignore[misc]
    for key, kind in kinds_of(lk).items():
        if kind != "version":
            truncated(store, key)

    done = repair(lk.refs, "birds", Signature.of(None, None), cache=cache, dry_run=False)

    assert done.lost == ()
    assert lake_on(store).verify("full", "birds").ok
    assert every_row(lk, "birds").equals(right)
    cache.close()


def test_a_document_is_taken_from_another_dataset_that_has_the_version(lk: Lake):
    """Every dataset owns its copies, which are the same bytes."""
    lk.copy("birds", "copies/of-birds")
    deleted(lk.store, names.version_key("birds", lk.dataset("birds").version))  # type: ignore[arg-type]

    done = lake_on(lk.store).repair("birds", dry_run=False)

    assert done.lost == ()
    assert len(every_row(lake_on(lk.store), "birds")) == 2700


def test_lost_log_entries_and_tags_come_from_a_copy_of_the_same_lake_only(lk: Lake):
    """They have no digest: another lake's would be another history."""
    mirror, other = copy_of(lk.store), MemoryStore()
    sample_lake(other)
    lost = names.log_key("birds", 2)
    deleted(lk.store, lost)  # type: ignore[arg-type]

    from_other = lake_on(lk.store).repair("birds", source=lake_on(other), dry_run=False)
    assert [problem.key for problem in from_other.lost] == [lost]
    from_mirror = lake_on(lk.store).repair("birds", source=lake_on(mirror), dry_run=False)

    assert from_mirror.fetched == (lost,)
    assert lk.store.get(lost) == mirror.get(lost)


def test_several_losses_at_once_are_mended_together(lk: Lake):
    """A lost document hides lost segments, and these lost parts: it goes on until nothing more is found."""
    mirror = copy_of(lk.store)
    right = every_row(lk, "birds")
    for key in kinds_of(lk):
        deleted(lk.store, key)  # type: ignore[arg-type]

    done = lake_on(lk.store).repair("birds", source=lake_on(mirror), dry_run=False)

    assert set(done.fetched) >= set(kinds_of(lake_on(mirror)))
    assert every_row(lake_on(lk.store), "birds").equals(right)


def test_a_condemned_object_is_stored_under_a_further_generation(lk: Lake):
    """A sweep of a list that has its key would take it away again."""
    from tests.test_gc import condemn

    mirror = copy_of(lk.store)
    key = sorted(key for key, kind in kinds_of(lk).items() if kind == "part")[0]
    deleted(lk.store, key)  # type: ignore[arg-type]
    condemn(lk.store, key)

    lake_on(lk.store).repair("birds", source=lake_on(mirror), dry_run=False)

    assert lk.store.head(key) is None
    assert lk.store.get(names.part_key(str(names.parse_key(key).digest), 1)) == mirror.get(key)  # type: ignore[union-attr]


def test_nothing_left_is_said(lk: Lake):
    """Where no version can be read any more, dropping makes no empty one."""
    for key in blobs(lk.store):
        deleted(lk.store, key)  # type: ignore[arg-type]
    with pytest.raises(lake.IntegrityError, match="no version"):
        lake_on(lk.store).repair("birds", drop=True, dry_run=False)


def test_a_sound_dataset_needs_nothing(tmp_path: Path):
    """Neither a new version nor any other change."""
    lk = lake.open(tmp_path)
    lk.commit("birds", table(0, 10))
    before = sorted(str(path) for path in tmp_path.rglob("*"))

    done = lk.repair("birds", source=tmp_path, drop=True)

    assert (done.fetched, done.lost, done.entry) == ((), (), None)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert keys_of(lk, "birds") == [f"k{n:05}" for n in range(10)]


def test_a_source_that_is_no_lake_is_refused_though_nothing_is_damaged(tmp_path: Path) -> None:
    """A mistyped URL is not found out in the hour of need."""
    lk = lake.open(tmp_path / "lake")
    lk.commit("birds", pa.table({"key": ["a"]}))
    for source in (tmp_path / "nowhere", str(tmp_path), lake.open(tmp_path / "nowhere")):
        with pytest.raises(lake.NotFoundError, match="nothing to repair from: no lake at"):
            lk.repair("birds", source=source)
    (tmp_path / "other").mkdir()
    lake.open(tmp_path / "other").init()
    (tmp_path / "other" / names.LAKE).write_bytes(b"{")

    assert not lk.repair("birds", source=tmp_path / "other").lost  # damaged, but a lake
