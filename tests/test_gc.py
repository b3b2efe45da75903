"""Garbage collection: what goes, what never does, and what makes it refuse."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lake
from lake.format import names
from lake.format.documents import canonical, sha256_hex
from lake.gc import GcReport
from lake.guard import Guard
from lake.repo import Lake
from lake.stores import LEASE_KEY, LocalStore, Store
from lake.stores.wrappers import CountingStore, PrefixStore
from tests.memory import DAY, GRACE, MemoryStore, blobs, keys_of, lake_on, rows


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def lk(memory: MemoryStore) -> Lake:
    """A lake whose dataset `birds` has three versions, the first two of them expired."""
    made = lake_on(memory)
    for x in range(3):
        made.commit("birds", rows(1, 2, 3, x=x))
    made.expire("birds", keep=1, dry_run=False)
    return made


def collect(lk: Lake, **how: Any) -> GcReport:
    """A run for real, whatever share of the bytes goes."""
    return lk.gc(dry_run=False, force=True, **how)


def pass_time(lk: Lake, seconds: float) -> None:
    lk.store.clock += seconds  # type: ignore[attr-defined]


# --- what goes, and when ----------------------------------------------------------------------


def test_garbage_is_condemned_and_deleted_a_grace_later(lk: Lake):
    """First only a list appears; a grace later the objects go; the list goes another grace later."""
    pass_time(lk, GRACE)
    before = blobs(lk.store)

    listed = collect(lk)
    assert (listed.condemned, listed.deleted, blobs(lk.store)) == (6, 0, before)
    pass_time(lk, GRACE - 1)
    assert (collect(lk).deleted, lk.gc().waiting) == (0, 6)
    pass_time(lk, 1)
    swept = collect(lk)

    assert (swept.condemned, swept.deleted, swept.bytes) == (0, 6, listed.condemned_bytes)
    assert len(blobs(lk.store)) == 3
    assert keys_of(lk, "birds") == ["1", "2", "3"]
    assert len(list(lk.store.list("gc/condemned/"))) == 1
    pass_time(lk, GRACE)
    collect(lk)
    assert list(lk.store.list("gc/")) == []


def test_reported_bytes_are_those_that_a_listing_no_longer_shows(lk: Lake):
    """With nobody writing and no grace, what is left is what is reachable, and the numbers are true."""
    lk.commit("fish", rows(7, 8))
    lk.remove("fish")
    lk.store.put("tmp/" + "0" * 32, b"half a part")
    before = {found.key: found.size for found in lk.store.list()}

    report = collect(lk, no_writers=True, grace=0)

    after = {found.key for found in lk.store.list()}
    assert report.bytes == sum(size for key, size in before.items() if key not in after)
    assert report.deleted == len(before.keys() - after)
    assert not any(key.startswith(("gc/", "tmp/")) for key in after)
    assert len(blobs(lk.store)) == 3
    assert keys_of(lk, "birds") == ["1", "2", "3"]


def test_a_dry_run_tells_what_a_run_would_do_and_changes_nothing(lk: Lake):
    """The numbers are those of the run that follows."""
    for _ in range(3):
        pass_time(lk, GRACE)
        before = dict(lk.store.objects)  # type: ignore[attr-defined]
        told = lk.gc()
        assert told.dry_run
        assert lk.store.objects == before  # type: ignore[attr-defined]
        done = collect(lk)
        for number in ("condemned", "deleted", "bytes", "condemned_bytes", "needs_force"):
            assert getattr(told, number) == getattr(done, number), number


def test_what_is_young_is_not_listed(lk: Lake):
    """An upload whose commit may still be under way is younger than a grace."""
    pass_time(lk, GRACE - 1)

    assert collect(lk).condemned == 0


def test_documents_go_before_segments_before_parts(memory: MemoryStore):
    """A version that is half collected is never one whose document is there."""
    counting = CountingStore(memory)
    lk = lake_on(counting)
    for x in range(3):
        lk.commit("birds", rows(1, 2, x=x))
    lk.expire("birds", keep=1, dry_run=False)
    deleted: list[str] = []
    memory.delete = lambda keys: deleted.extend(keys) or {}  # type: ignore[method-assign]

    collect(lk, no_writers=True, grace=0)

    kinds = [parsed.kind for key in deleted if (parsed := names.parse_key(key)) and not key.startswith("gc/")]
    assert kinds == ["version"] * 2 + ["segment"] * 2 + ["part"] * 2


def test_a_delete_that_failed_is_not_repeated_by_its_run(lk: Lake):
    """A late second delete could hit what was written in between; a later run condemns the object again."""
    memory: Any = lk.store
    pass_time(lk, GRACE)
    collect(lk)
    pass_time(lk, GRACE)
    asked: list[str] = []

    def refuse(keys: Any) -> dict[str, Exception]:
        doomed = list(keys)
        asked.extend(doomed)
        return {key: lake.StoreError("no") for key in doomed}

    memory.delete = refuse
    report = collect(lk)
    asked_once = list(asked)
    del memory.delete

    assert (report.deleted, report.failed, report.bytes) == (0, 6, 0)
    assert len(asked_once) == len(set(asked_once)) == 6
    assert collect(lk).condemned == 6
    pass_time(lk, GRACE)
    assert collect(lk).deleted == 6


# --- who sweeps -------------------------------------------------------------------------------


def test_a_list_is_swept_by_one_process_only(lk: Lake):
    """Whoever finds the list claimed leaves it, and the list of a sweeper that died, to stay."""
    pass_time(lk, GRACE)
    collect(lk)
    [listed] = lk.store.list("gc/condemned/")
    run = names.parse_key(listed.key).run  # type: ignore[union-attr]
    lk.store.put_new(names.claimed_key(str(run)), b"another")
    pass_time(lk, GRACE)

    report = collect(lk)

    assert report.deleted == 0
    assert report.condemned == 6, "being on a dead run's list is no reason to skip"
    pass_time(lk, GRACE)
    assert collect(lk).deleted == 6
    pass_time(lk, 3 * GRACE)
    collect(lk)
    assert [found.key for found in lk.store.list("gc/condemned/")] == [listed.key]


def test_a_sweeper_that_slept_until_its_list_was_gone_deletes_nothing(lk: Lake):
    """It decided what to delete long ago; meanwhile others swept the list, and a writer wrote the key again."""
    memory: Any = lk.store
    pass_time(lk, GRACE)
    collect(lk)
    pass_time(lk, GRACE)
    create = memory.put_new

    def sleepy(key: str, data: Any) -> bool:
        if key.startswith("gc/claimed/"):
            del memory.put_new
            others = lake_on(memory)
            collect(others)
            pass_time(lk, GRACE)
            collect(others)
            others.commit("birds", rows(1, 2, 3, x=0))
        return bool(create(key, data))

    memory.put_new = sleepy
    collect(lk)

    assert keys_of(lk, "birds@head") == ["1", "2", "3"]
    assert lake_on(memory).dataset("birds")[0]["x"] == 0


def test_the_end_of_a_log_is_looked_for_after_its_entries(lk: Lake):
    """While a collector reads, an append takes the head over and the entry before it is expired: neither is missed."""
    memory: Any = lk.store
    real, seen = memory.get, []

    def get(key: str) -> bytes:
        if key == names.log_key("birds", 3) and not seen:
            seen.append(key)
            other = lake_on(memory)
            other.commit("birds", rows(9), mode="append")
            other.expire("birds", keep=1, dry_run=False)
        return bytes(real(key))

    memory.get = get
    lk = lake_on(memory)
    collect(lk, no_writers=True, grace=0)

    assert seen
    assert keys_of(lk, "birds") == ["1", "2", "3", "9"]


# --- what never goes --------------------------------------------------------------------------


def test_tags_and_pins_of_this_life_protect_and_older_ones_do_not(
    memory: MemoryStore, tmp_path: Path, monkeypatch: Any
):
    """A protected version stays readable whatever becomes of its log entry; removing the dataset ends that."""
    monkeypatch.chdir(tmp_path)
    lk = lake_on(memory)
    for x in range(4):
        lk.commit("birds", rows(1, x=x))
    lk.tag("birds@#1", "v1.0")
    lk.pin("birds@#2")
    lk.unpin("birds")
    lk.pin("birds@#3")

    gone = lk.expire("birds", keep=1, dry_run=False)
    collect(lk, no_writers=True, grace=0)

    assert [entry.seq for entry in gone] == [2]
    assert keys_of(lk, "birds@v1.0") == keys_of(lk, "birds@#3") == keys_of(lk, "birds@#4") == ["1"]
    with pytest.raises(lake.VersionExpired):
        lk.dataset("birds@#2")
    lk.remove("birds")
    collect(lk, no_writers=True, grace=0)
    assert blobs(memory) == set()


@pytest.mark.parametrize("keep", [1.5, True, "2"])
def test_a_number_of_versions_to_keep_is_a_whole_number(lk: Lake, keep: Any):
    """Anything else is refused by name, and nothing expires."""
    with pytest.raises(TypeError, match="keep is a whole number, not"):
        lk.expire("birds", keep=keep, dry_run=False)


def test_a_derived_pointer_is_a_root_until_its_version_is_expired(lk: Lake):
    """`expire` takes the pointers of what it expires away, also those that a crash left behind."""
    first = lk.log("birds")[-1]
    pointer = names.derived_key("birds", "ab" * 32)
    says = {"version": first.version, "seq": 1, "born": 1, "time": "", "author": "", "message": None}
    lk.store.put_new(pointer, canonical({**says, "needs": {"read": [], "write": []}, "sources": []}))

    collect(lk, no_writers=True, grace=0)
    assert len(blobs(lk.store)) == 6
    lk.expire("birds", keep=1, dry_run=False)
    collect(lk, no_writers=True, grace=0)

    assert lk.store.head(pointer) is None
    assert len(blobs(lk.store)) == 3


def test_another_generation_of_what_is_reachable_is_spared(lk: Lake):
    """Two runs could otherwise each count on the copy that the other deletes."""
    for key in blobs(lk.store):
        parsed = names.parse_key(key)
        assert parsed is not None
        folder, _, file = key.rpartition("/")
        lk.store.copy(key, f"{folder}/{file.replace('.', '.g1.', 1)}")
    assert len(blobs(lk.store)) == 18

    collect(lk, no_writers=True, grace=0)

    assert len(blobs(lk.store)) == 6


def test_foreign_files_are_reported_and_left(lk: Lake):
    """Only keys of lake's own shapes are ever deleted."""
    foreign = [
        "README.txt",
        "shards/ab/notes.txt",
        "manifests/.DS_Store",
        "shards/zz/" + "ab" * 32 + ".arrow",
        "gc/else",
    ]
    for key in foreign:
        lk.store.put(key, b"mine")

    report = collect(lk, no_writers=True, grace=0)

    assert sorted(report.foreign) == sorted(foreign)
    assert report.deleted == 6
    assert all(lk.store.get(key) == b"mine" for key in foreign)


@pytest.mark.parametrize("spell", ["{}", "{}/", "{}//", "{}/../a lake", "file://{}", "file://{quoted}/"])
def test_how_the_url_is_spelled_changes_nothing(tmp_path: Path, spell: str):
    """What is live is found by digests and keys, never by comparing paths."""
    place = tmp_path / "a lake"
    plain = lake.open(place)
    for x in range(3):
        plain.commit("birds", rows(1, 2, x=x))

    report = lake.open(spell.format(place, quoted=quote(str(place)))).gc(no_writers=True, grace=0)

    assert (report.condemned, report.deleted, report.foreign) == (0, 0, ())


# --- refusing ---------------------------------------------------------------------------------


def unknown_document(store: Any) -> None:
    store.put("datasets/birds/branches/main.json", b"{}")


def unknown_field(store: Any) -> None:
    key = names.log_key("birds", 3)
    store.put(key, canonical({**json.loads(store.get(key)), "overlays": []}))


def unknown_need(store: Any) -> None:
    store.put(
        "lake.json",
        canonical({**json.loads(store.get("lake.json")), "needs": {"read": [], "write": ["overlays"]}}),
    )


def unknown_tag_field(store: Any) -> None:
    lake_on(store).tag("birds", "v1.0")
    key = names.tag_key("birds", "v1.0")
    store.put(key, canonical({**json.loads(store.get(key)), "also": 1}))


def unreadable_tag(store: Any) -> None:
    store.put(names.tag_key("birds", "v1.0"), b'{"version":')


def gap_in_the_log(store: Any) -> None:
    store.delete([names.log_key("birds", 2)])


def lost_end_of_the_log(store: Any) -> None:
    store.delete([names.log_key("birds", 3)])


def unknown_list(store: Any) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"key": ["lake.json"], "bytes": [1]}), sink)
    store.put(names.condemned_key("run"), sink.getvalue())


def unreadable_list(store: Any) -> None:
    unknown_list(store)
    key = names.condemned_key("run")
    store.put(key, store.get(key)[:-1])


def lost_part(store: Any) -> None:
    head = lake_on(store).dataset("birds").snapshot
    store.delete([names.part_key(part.digest) for shard in head.manifest.shards() for part in shard.parts])


def short_segment(store: Any) -> None:
    [ref] = lake_on(store).dataset("birds").snapshot.document.segments
    key = names.segment_key(ref.digest)
    store.put(key, store.get(key)[:-1])


def lost_document(store: Any) -> None:
    store.delete([names.version_key("birds", lake_on(store).dataset("birds").version)])


def listing_breaks_off(store: Any) -> None:
    real = store.list

    def broken(prefix: str = "", *, start_after: str | None = None) -> Any:
        found = list(real(prefix, start_after=start_after))
        yield from found[: len(found) // 2]
        raise lake.StoreError("the listing broke off", retryable=True)

    store.list = broken


TROUBLE: dict[Callable[[Any], None], type[Exception]] = {
    unknown_document: lake.FormatError,
    unknown_field: lake.FormatError,
    unknown_need: lake.FormatError,
    unknown_tag_field: lake.FormatError,
    unreadable_tag: lake.IntegrityError,
    unreadable_list: lake.IntegrityError,
    unknown_list: lake.FormatError,
    gap_in_the_log: lake.IntegrityError,
    lost_end_of_the_log: lake.IntegrityError,
    lost_part: lake.IntegrityError,
    short_segment: lake.IntegrityError,
    lost_document: lake.IntegrityError,
    listing_breaks_off: lake.StoreError,
}


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
def test_whatever_is_unreadable_unknown_or_damaged_deletes_nothing(lk: Lake, trouble: Callable[[Any], None]):
    """It fails closed, in a dry run too, and publishes no list."""
    trouble(lk.store)
    before = dict(lk.store.objects)  # type: ignore[attr-defined]

    for how in ({}, {"dry_run": False, "force": True, "no_writers": True, "grace": 0}):
        with pytest.raises(TROUBLE[trouble]):
            lake_on(lk.store).gc(**how)  # type: ignore[arg-type]

    assert lk.store.objects == before  # type: ignore[attr-defined]


def test_much_at_once_needs_force(lk: Lake):
    """Over 30 % of all bytes go only on request; a dry run says so."""
    pass_time(lk, GRACE)

    assert lk.gc().needs_force
    with pytest.raises(ValueError, match=r"66%|67%|over 30%"):
        lk.gc(dry_run=False)
    assert list(lk.store.list("gc/")) == []
    assert collect(lk).condemned == 6


def test_a_shorter_grace_needs_that_nobody_writes(lk: Lake):
    """Writers count on what they saw for as long as `lake.json` says, and a day at least."""
    with pytest.raises(ValueError, match="no_writers"):
        lk.gc(grace="6d")
    assert lk.gc(grace="6d", no_writers=True).dry_run
    assert lk.gc(grace="8d").dry_run
    info = json.loads(lk.store.get("lake.json"))
    lk.store.put("lake.json", canonical(info | {"grace": "1h"}))
    with pytest.raises(ValueError, match="86,400 s"):
        lake_on(lk.store).gc(grace="2h")


def test_the_host_clock_does_not_matter(lk: Lake, monkeypatch: pytest.MonkeyPatch):
    """Ages are differences of the store's own times: a wrong clock here condemns nothing more."""
    pass_time(lk, GRACE / 2)
    expected = lk.gc()
    for shift in (-DAY, DAY, 400 * DAY):
        with monkeypatch.context() as patched:
            patched.setattr("time.time", lambda shift=shift: 1_800_000_000.0 + shift)
            assert lk.gc() == expected


def test_a_clock_that_was_set_back_hides_nothing_for_ever(lk: Lake):
    """Objects dated in the future count as new; with no grace they go all the same."""
    pass_time(lk, -DAY)

    assert collect(lk).condemned == 0
    assert collect(lk, no_writers=True, grace=0).deleted == 6


def test_there_must_be_a_lake(memory: MemoryStore):
    """A misspelled URL is no empty lake, and gets none."""
    with pytest.raises(lake.NotFoundError):
        lake_on(memory).gc(dry_run=False)
    assert memory.objects == {}


# --- the writers' half ------------------------------------------------------------------------


def condemn(store: Any, *keys: str) -> str:
    """Publish a list by hand; its key."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"key": list(keys), "bytes": [0] * len(keys)}), sink)
    store.put(names.condemned_key("byhand"), sink.getvalue())
    return names.condemned_key("byhand")


def test_a_condemned_key_counts_as_absent(lk: Lake):
    """A commit of data whose every object is listed writes further generations, and reads back once they go."""
    pass_time(lk, GRACE)
    old = blobs(lk.store)
    collect(lk)

    again = lk.commit("birds", rows(1, 2, 3, x=0))

    written = blobs(lk.store) - old
    assert again.bytes_new > 0
    assert written
    assert all(".g1." in key for key in written)
    pass_time(lk, GRACE)
    collect(lk)
    assert keys_of(lk, "birds") == ["1", "2", "3"]


@pytest.mark.parametrize("revive", ["tag", "rollback", "copy", "pin"])
def test_a_condemned_version_is_revived_by_copies(lk: Lake, revive: str, tmp_path: Path, monkeypatch: Any):
    """Whoever names a version again makes further generations of what is listed of it."""
    monkeypatch.chdir(tmp_path)
    lk.commit("birds", rows(4))
    lk.tag("birds@#3", "kept")
    lk.expire("birds", keep=1, dry_run=False)
    lk.untag("birds", "kept")
    entry = lk.log("birds")[1]
    lk.store.put(
        names.log_key("birds", 3),
        canonical({**json.loads(lk.store.get(names.log_key("birds", 3))), "operation": "overwrite"}),
    )
    condemned = blobs(lk.store)
    condemn(lk.store, *condemned)

    acts = {
        "tag": lambda: lk.tag(f"birds@{entry.version}", "again"),
        "pin": lambda: lk.pin(f"birds@{entry.version}"),
        "rollback": lambda: lk.rollback("birds", "#3"),
        "copy": lambda: lk.copy("birds@#3", "fish"),
    }
    acts[revive]()

    document = lk.refs.version("birds", str(entry.version))
    for segment in document.segments:
        assert lk.store.head(names.segment_key(segment.digest, 1)) is not None
    lk.store.delete(condemned)
    assert keys_of(lk, {"tag": "birds@again", "copy": "fish"}.get(revive, f"birds@{entry.version}")) == [
        "1",
        "2",
        "3",
    ]


def test_what_is_gone_cannot_be_revived(lk: Lake):
    """A tag needs bytes; a commit that finds the same says that repeating helps."""
    guard = Guard(lk.store, GRACE)
    with pytest.raises(lake.VersionExpired):
        guard.secure([names.part_keys("ab" * 32)])
    guard = Guard(lk.store, GRACE)
    guard.put(names.part_keys(sha256_hex(b"x")), b"x")
    lk.store.delete([names.part_key(sha256_hex(b"x"))])
    pass_time(lk, GRACE)
    with pytest.raises(lake.ConflictError) as caught, guard.root():
        pass
    assert caught.value.retryable


def test_after_half_a_grace_everything_is_looked_up_again(lk: Lake):
    """What was listed meanwhile is written again before the root is made, also what the writer itself had uploaded."""
    keys = names.part_keys(sha256_hex(b"x"))
    guard = Guard(lk.store, GRACE)
    guard.put(keys, b"x")
    condemn(lk.store, keys(0))
    with guard.root():
        assert lk.store.head(keys(1)) is None
    pass_time(lk, GRACE / 2 + 1)

    with guard.root():
        assert lk.store.get(keys(1)) == b"x"


def test_a_look_that_failed_half_way_does_not_count(lk: Lake):
    """The store broke off while everything was looked up again: the next try looks everything up."""
    keys = names.part_keys(sha256_hex(b"x"))
    guard = Guard(lk.store, GRACE)
    guard.put(keys, b"x")
    condemn(lk.store, keys(0))
    pass_time(lk, GRACE / 2 + 1)
    memory: Any = lk.store
    memory.head = lambda key: (_ for _ in ()).throw(lake.StoreError("503", retryable=True))
    with pytest.raises(lake.StoreError), guard.root():
        pass
    del memory.head

    with guard.root():
        assert lk.store.get(keys(1)) == b"x"


def test_an_append_that_is_carried_over_looks_up_what_it_took_from_the_old_head(memory: MemoryStore):
    """A part of the head is reused without a look only while that head is the base that it lands on."""
    lk = lake_on(memory)
    lk.commit("birds", rows(1, 2))
    [shard] = lk.dataset("birds").snapshot.manifest.shards()
    condemn(memory, *(names.part_key(part.digest) for part in shard.parts))

    def data() -> Any:
        yield from [("1", {"x": 0}), ("2", {"x": 0})]
        lake_on(memory).commit("birds", rows(9))

    with pytest.raises(lake.ConflictError) as caught:
        lk.commit("birds", data(), mode="append")
    assert caught.value.retryable


def test_a_copy_of_the_wrong_size_does_not_count(lk: Lake):
    """Remains of a failed upload are no hit: the bytes are written beside them, and read."""
    keys = names.part_keys(sha256_hex(b"whole"))
    lk.store.put(keys(0), b"half")

    Guard(lk.store, GRACE).put(keys, b"whole")

    assert lk.store.get(keys(1)) == b"whole"


def test_many_objects_are_secured_by_listings(memory: MemoryStore):
    """A tag on a version of hundreds of parts costs a handful of requests, not one for each."""
    counting = CountingStore(memory)
    lk = lake_on(counting)
    lk.commit("birds", rows(*range(12_000)), shard_bytes="16KiB", key=None)
    assert lk.dataset("birds").snapshot.document.shards > 15
    objects = [names.part_keys(sha256_hex(str(n).encode())) for n in range(500)]
    guard = Guard(counting, GRACE)
    for keys in objects:
        memory.put(keys(0), b"")
    counting.reset()

    guard.secure(objects)

    assert sum(counting.counts.values()) < 5


# --- folders and buckets ----------------------------------------------------------------------


def test_a_folder_or_bucket_is_collected_like_memory(store: Store):
    """The whole cycle on real stores, with nobody writing: exactly what is reachable is left."""
    lk = lake.open(store.url) if isinstance(store, LocalStore) else lake_on(store)
    for x in range(3):
        lk.commit("birds", rows(1, 2, 3, x=x))
    lk.expire("birds", keep=1, dry_run=False)

    report = collect(lk, no_writers=True, grace=0)

    assert (report.condemned, report.deleted, report.failed, report.foreign) == (6, 6, 0, ())
    assert len(blobs(store)) == 3
    assert keys_of(lk, "birds") == ["1", "2", "3"]
    assert not [found.key for found in store.list("gc/") if found.key != LEASE_KEY]


def test_a_sweep_waits_for_a_root_that_is_being_made(tmp_path: Path):
    """On a folder it takes the root lease exclusively, once, before it reads roots."""
    lk = lake.open(tmp_path)
    taken: list[bool] = []

    class Watched(PrefixStore):
        def root_lease(self, *, exclusive: bool = False) -> Any:
            taken.append(exclusive)
            return super().root_lease(exclusive=exclusive)

    lk.commit("birds", rows(1))
    collect(lake_on(Watched(LocalStore(tmp_path.parent), tmp_path.name)))
    assert taken == []
    condemn(lk.store)
    collect(lake_on(Watched(LocalStore(tmp_path.parent), tmp_path.name)), no_writers=True, grace=0)
    assert taken == [True]
