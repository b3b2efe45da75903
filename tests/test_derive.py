"""What `derive` computes, finds again, makes anew, refuses, and leaves behind whatever fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import lake
from lake import commit
from lake.cli import app
from lake.format import names
from lake.pipeline import Pipeline
from lake.repo import Lake
from lake.stores.wrappers import FAULTS, CountingStore, FaultStore
from tests.damage import deleted, flipped, truncated
from tests.memory import DAY, GRACE, MemoryStore, keys_of, lake_on
from tests.scheduler import Inline

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
ROOT = Path(__file__).parents[1]
SMALL = "16KiB"


def numbers(count: int = 1500, by: int = 2) -> Pipeline:
    """Samples of no lake; their order and values have a fingerprint."""

    def times(n: int) -> tuple[str, dict[str, int]]:
        return f"k{n:05}", {"x": n * by}

    return lake.from_iterable(range(count)).map(times)


def counted(path: Path, by: int = 2) -> Pipeline:
    """The same, of which each call leaves a byte in a file."""
    file = str(path)

    def times(n: int) -> tuple[str, dict[str, int]]:
        with open(file, "a") as calls:  # noqa: PTH123
            calls.write(".")
        return f"k{n:05}", {"x": n * by}

    return lake.from_iterable(range(50)).map(times)


def read(lk: Lake, reference: str = "made") -> list[Any]:
    """The rows of a version, as stored now."""
    dataset = lake_on(lk.store).dataset(reference)
    return dataset.take(range(len(dataset))).to_pylist()


def rows_of(pipeline: Pipeline) -> list[Any]:
    return [{"key": key, **fields} for key, fields in Pipeline(pipeline.node)]


@pytest.fixture
def lk(tmp_path: Path) -> Lake:
    found = lake.open(tmp_path / "lake", progress=False)
    noise = np.random.default_rng(0)
    found.commit("birds", [(f"b{n:03}", {"song": noise.random(8), "n": n}) for n in range(300)])
    return found


# --- finding again --------------------------------------------------------------------------------


def test_a_pipeline_is_computed_once(lk: Lake, tmp_path: Path):
    """The second call finds the version, and no function is called again."""
    calls = tmp_path / "calls"
    first = lk.derive("made", counted(calls))
    again = lk.derive("made", counted(calls))

    assert (again.version, again.snapshot.entry) == (first.version, first.snapshot.entry)
    assert calls.stat().st_size == 50
    assert read(lk) == rows_of(counted(calls))
    assert len(lk.log("made")) == 1


def test_finding_writes_nothing_and_asks_little():
    """A hit reads the head, the pointer, its entry and the manifest, and looks each object up once."""
    store = MemoryStore()
    shards = lake_on(store).derive("made", numbers(), shard_bytes=SMALL).snapshot.document.shards
    assert shards > 1
    counting = CountingStore(store)

    lake_on(counting).derive("made", numbers())

    assert not counting.counts.keys() & {"put", "put_new", "stage", "publish", "copy", "delete"}
    assert counting.counts["head"] == shards + 2
    assert counting.counts["get"] + counting.counts["list"] <= 8


def test_a_changed_function_is_another_version_and_the_old_one_is_found_again(lk: Lake):
    """The head is what was computed last; a pipeline finds its own version wherever that is in the log."""
    double, triple = (lk.derive("made", numbers(50, by)) for by in (2, 3))

    back = lk.derive("made", numbers(50, 2))

    assert back.version == double.version != triple.version == lk.dataset("made").version
    assert [row["x"] for row in back[:3].to_pylist()] == [0, 2, 4]
    assert len(lk.log("made")) == 2


def test_a_tag_is_part_of_the_name_and_stands_for_what_cannot_be_pinned(lk: Lake):
    """Other text, other version; equal data are stored once."""
    generator = np.random.default_rng(0)

    def fn(n: int) -> tuple[str, dict[str, int]]:
        return str(n), {"x": n + (generator is None)}

    pipeline = lake.from_iterable(range(9)).map(fn)
    with pytest.raises(lake.NotReproducibleError, match=r"stage 2, map\(fn\).*generator.*tag="):
        lk.derive("made", pipeline)
    one, two = lk.derive("made", pipeline, tag="one"), lk.derive("made", pipeline, tag="two")

    assert one.version == two.version
    assert [each.tag for each in two.derivations()] == ["one", "two"]
    assert lk.derive("made", pipeline, tag="one").snapshot.entry == one.snapshot.entry


def test_meta_and_recipe_are_kept_with_what_is_computed(lk: Lake):
    """They are no part of the fingerprint."""
    made = lk.derive("made", numbers(9), meta={"license": "CC0"}, recipe={"steps": 1}, message="first")
    found = lk.derive("made", numbers(9), meta={"license": "MIT"})

    assert (made.meta, made.recipe) == ({"license": "CC0"}, {"steps": 1}) == (found.meta, found.recipe)
    assert [entry.message for entry in lk.log("made")] == ["first"]


def test_it_is_always_epoch_0_of_a_fresh_copy(lk: Lake):
    """Where the pipeline was iterated to, or which epoch is next, makes no difference; it stays where it was."""

    def noisy(sample: Any, rng: np.random.Generator) -> Any:
        return sample[0], {"n": sample[1]["n"], "noise": float(rng.random())}

    def make() -> Pipeline:
        return lk.dataset("birds").samples().shuffle(seed=1).map(noisy, rng=True, seed=2)

    used = make()
    list(used)
    stream = iter(used)
    before = [next(stream) for _ in range(7)]
    state = used.state_dict()

    made = lk.derive("made", used)

    assert made[:].to_pylist() == rows_of(make())
    assert used.state_dict() == state
    rest = list(stream)
    assert sorted(key for key, _ in before + rest) == sorted(key for key, _ in make())
    used.set_epoch(5)
    assert lk.derive("made", used).snapshot.entry == made.snapshot.entry


def test_where_a_version_comes_from_is_told(lk: Lake, monkeypatch: pytest.MonkeyPatch):
    """By `derivations()`, `lake info` and `lake.derived`: sources with their versions, stages, fingerprint."""
    birds = lk.dataset("birds")
    lk.tag("birds", "v1")

    def halved(sample: Any) -> Any:
        return sample[0], {"half": sample[1]["n"] / 2}

    pipeline = birds.samples(columns=["n"]).map(halved)
    made = lk.derive("halves", pipeline)
    lk.delete_rows("birds", "n = 3")

    [found] = made.derivations()
    assert found.fingerprint == pipeline.fingerprint()
    assert found.sources == {"birds": birds.version}
    assert found.pipeline == "samples(birds) -> map(halved)"
    query = "select fingerprint, version, sources->>'birds' from lake.derived where dataset = 'halves'"
    assert lk.sql(query).fetchall() == [(found.fingerprint, made.version, birds.version)]
    monkeypatch.setenv("LAKE_URL", lk.url)
    told = json.loads(CliRunner().invoke(app, ["info", "halves", "--json"]).stdout)
    assert told["derived"] == [asdict(found)]
    text = CliRunner().invoke(app, ["info", "halves"]).stdout
    assert f"samples(birds) -> map(halved), of birds@{birds.version[:12]}" in text
    assert birds.derivations() == []


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda ds: ds.samples().shuffle(), lake.NotReproducibleError, "its seed was drawn"),
        (lambda ds: ds.samples().repeat(), ValueError, r"no end; take\(n\)"),
        (lambda ds: ds.samples().map(len), TypeError, r"item 0 .* not a sample"),
        (lambda ds: ds.samples().filter(lambda s: False), ValueError, "no rows|empty"),
        (lambda ds: ds.scan(), TypeError, "takes a pipeline.*not Scan"),
        (lambda ds: ds, TypeError, "not Dataset"),
    ],
)
def test_what_cannot_be_derived_is_refused_and_nothing_is_made(lk: Lake, make: Any, error: Any, says: str):
    """Seeds that nobody chose, streams without end, items that are no samples."""
    with pytest.raises(error, match=says):
        lk.derive("made", make(lk.dataset("birds")))
    assert lk.datasets() == ["birds"]


def test_a_dataset_is_not_derived_from_itself(lk: Lake, tmp_path: Path):
    """Each call would read another head; one of the same name in another lake is another dataset."""
    pipeline = lk.dataset("birds").samples()
    with pytest.raises(ValueError, match=r"reads 'birds' itself"):
        lk.derive("birds", pipeline)
    other = lake.open(tmp_path / "other", progress=False)
    assert len(other.derive("birds", pipeline)) == 300


def test_a_failing_function_leaves_nothing(lk: Lake):
    """The error is the function's, with the stage; the next call begins anew."""

    def fragile(n: int) -> tuple[str, dict[str, int]]:
        return str(n), {"x": 1 // (n - 7)}

    with pytest.raises(ZeroDivisionError) as caught:
        lk.derive("made", lake.from_iterable(range(20)).map(fragile))
    assert "in map(" in caught.value.__notes__[0]
    assert lk.datasets() == ["birds"]


# --- making it again ------------------------------------------------------------------------------


def test_a_derived_version_is_kept_until_it_is_expired():
    """gc spares it though the head moved on; once expired, the pipeline computes it again."""
    store = MemoryStore()
    lk = lake_on(store)
    first = lk.derive("made", numbers(40, 2)).version
    lk.derive("made", numbers(40, 3))
    lk.gc(dry_run=False, no_writers=True, grace=0)
    assert lake_on(store).derive("made", numbers(40, 2)).version == first

    lk.expire("made", keep=1, dry_run=False)
    assert not list(store.list(names.derived_key("made", numbers(40, 2).fingerprint())))
    lk.gc(dry_run=False, force=True, no_writers=True, grace=0)
    again = lake_on(store).derive("made", numbers(40, 2))

    assert (again.version, again.snapshot.entry.seq) == (first, 3)
    assert read(lk) == rows_of(numbers(40, 2))
    assert lake_on(store).derive("made", numbers(40, 2)).snapshot.entry.seq == 3


def test_a_pointer_to_an_expired_version_counts_for_nothing():
    """As a crash in the middle of `expire` leaves it."""
    store = MemoryStore()
    lk = lake_on(store)
    lk.derive("made", numbers(40, 2))
    key = names.derived_key("made", numbers(40, 2).fingerprint())
    pointer = store.get(key)
    lk.derive("made", numbers(40, 3))
    lk.expire("made", keep=1, dry_run=False)
    store.put(key, pointer)

    assert lake_on(store).derive("made", numbers(40, 2)).snapshot.entry.seq == 3
    assert lake_on(store).derive("made", numbers(40, 2)).snapshot.entry.seq == 3


def test_a_tagged_version_is_found_though_its_entry_is_expired():
    """What a tag keeps can be read, and so it need not be made again."""
    store = MemoryStore()
    lk = lake_on(store)
    first = lk.derive("made", numbers(40, 2))
    lk.derive("made", numbers(40, 3))
    lk.tag("made@#1", "kept")
    lk.expire("made", keep=1, dry_run=False)

    assert lake_on(store).derive("made", numbers(40, 2)).version == first.version
    assert len(lk.log("made")) == 2


def test_a_removed_dataset_is_computed_anew():
    """What its earlier life pointed to does not count."""
    store = MemoryStore()
    lk = lake_on(store)
    lk.derive("made", numbers(40))
    lk.remove("made")

    for _ in range(2):
        assert lake_on(store).derive("made", numbers(40)).snapshot.entry.seq == 3
    assert read(lk) == rows_of(numbers(40))


def objects_of(lk: Lake) -> list[str]:
    """Keys of the version document, a segment and a part of `made`."""
    head = lk.dataset("made").snapshot
    [segment, *_], [shard, *_] = head.document.segments, head.manifest.shards()
    return [
        names.version_key("made", head.version),
        names.segment_key(segment.digest),
        names.part_key(shard.parts[0].digest),
    ]


@pytest.mark.parametrize("damage", [deleted, truncated, flipped], ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["version", "segment", "part"])
@pytest.mark.parametrize("moved", [False, True], ids=["head", "older"])
def test_what_is_damaged_is_computed_again(damage: Any, kind: int, moved: bool):
    """Bytes that are whole are stored beside the damaged ones, and the version reads as before."""
    store = MemoryStore()
    lk = lake_on(store)
    first = lk.derive("made", numbers(), shard_bytes=SMALL)
    key = objects_of(lk)[kind]
    if moved:
        lk.derive("made", numbers(9))
    damage(store, key)
    before = dict(store.objects)
    lake_on(store).verify("full")  # what was flipped shows only to who reads it

    again = lake_on(store).derive("made", numbers(), shard_bytes=SMALL)

    assert again.version == first.version
    assert read(lk, f"made@{first.version}") == rows_of(numbers())
    assert lake_on(store).verify("full").ok
    assert all(store.objects[key] == held for key, held in before.items() if "/shards/" in key)
    assert lake_on(store).derive("made", numbers()).snapshot.entry == again.snapshot.entry


def test_repair_computes_what_is_lost(lk: Lake):
    """With the pipeline that the dataset was derived by; another one is refused."""
    store = MemoryStore()
    lk = lake_on(store)
    lk.derive("made", numbers(), shard_bytes=SMALL, tag="t")
    key = objects_of(lk)[2]
    flipped(store, key)

    with pytest.raises(lake.NotFoundError, match=r"no version of 'made' was derived by this pipeline"):
        lake_on(store).repair("made", pipeline=numbers(), dry_run=False)
    told = lake_on(store).repair("made", pipeline=numbers(), tag="t")
    assert [problem.key for problem in told.lost] == [key]
    done = lake_on(store).repair("made", pipeline=numbers(), tag="t", dry_run=False)

    assert (done.fetched, done.lost, done.rows_lost) == ((key,), (), 0)
    assert lake_on(store).verify("full").ok
    assert read(lk) == rows_of(numbers())


def test_a_bucket_is_no_other(s3_url: str, tmp_path: Path):
    """Found again by a machine with nothing cached; a part that is gone from the bucket is stored again."""
    first = lake.open(s3_url, cache_dir=tmp_path / "one", progress=False).derive(
        "made", numbers(), shard_bytes=SMALL
    )
    lk = lake.open(s3_url, cache_dir=tmp_path / "two", progress=False)
    assert lk.derive("made", numbers()).snapshot.entry == first.snapshot.entry
    lk.store.delete([objects_of(lk)[2]])

    again = lk.derive("made", numbers())

    assert (again.version, len(lk.log("made"))) == (first.version, 2)
    assert lk.verify("full").ok
    other = lake.open(s3_url, cache_dir=tmp_path / "three", progress=False)
    assert other.dataset("made")[:].to_pylist() == rows_of(numbers())


# --- several at once, and crashes -----------------------------------------------------------------

_RACER = """
import os, sys, time
from pathlib import Path
import lake

def pid(n):
    return str(n), {"pid": os.getpid()}  # what no fingerprint shows: each process computes other data

lk = lake.open(sys.argv[1], progress=False)
pipeline = lake.from_iterable(range(500)).map(pid)
print("ready", flush=True)
sys.stdin.readline()
made = lk.derive("made", pipeline)
print(made.version, made.snapshot.entry.seq, flush=True)
"""


def test_of_racing_processes_all_return_one_version(tmp_path: Path):
    """Whatever each computes, there is one entry, one pointer, and every process has it."""
    command = [sys.executable, "-c", _RACER, str(tmp_path / "lake")]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    found = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    for racer in racers:
        found.append(racer.communicate(timeout=100)[0])
        assert racer.returncode == 0

    lk = lake.open(tmp_path / "lake", progress=False)
    assert set(found) == {f"{lk.dataset('made').version} 1\n"}
    assert len(lk.log("made")) == 1
    assert lk.verify("full").ok


def test_a_crash_before_the_pointer_costs_no_second_computation(tmp_path: Path):
    """The commit is found by its transaction, and pointed to."""
    store, calls = MemoryStore(), tmp_path / "calls"
    made = lake_on(store).derive("made", counted(calls))
    pointer = names.derived_key("made", counted(calls).fingerprint())
    store.delete([pointer])

    again = lake_on(store).derive("made", counted(calls))

    assert again.snapshot.entry == made.snapshot.entry
    assert calls.stat().st_size == 50
    assert store.head(pointer) is not None


def act(lk: Lake) -> Any:
    return lk.derive("made", numbers(400), shard_bytes=SMALL)


def over_another(lk: Lake) -> None:
    lk.derive("made", numbers(40, 3))


def after_its_expiry(lk: Lake) -> None:
    act(lk)
    over_another(lk)
    lk.expire("made", keep=1, dry_run=False)


@pytest.mark.parametrize("prepare", [None, over_another, after_its_expiry])
def test_any_call_may_fail_or_lose_its_reply(
    prepare: Callable[[Lake], None] | None, monkeypatch: pytest.MonkeyPatch
):
    """The lake is whole after it; the same call again gives the version, once, and gc takes nothing of it."""
    monkeypatch.setattr("lake.refs.ThreadPoolExecutor", Inline)
    monkeypatch.setattr("lake.ingest.ThreadPoolExecutor", Inline)
    monkeypatch.setattr(commit.time, "sleep", lambda seconds: None)
    seq = {None: 1, over_another: 2, after_its_expiry: 3}[prepare]

    def start() -> MemoryStore:
        store = MemoryStore()
        if prepare is not None:
            prepare(lake_on(store))
        store.clock += 2 * GRACE
        return store

    faulty = FaultStore(start())  # type: ignore[arg-type]
    act(lake_on(faulty))
    calls = len(faulty.calls)
    for fault in FAULTS if FULL else ("raise", "lost"):
        for index in range(0, calls, 1 if FULL else 3):
            store, where = start(), f"{fault} at {index}"
            try:
                act(lake_on(FaultStore(store, {index: fault})))  # type: ignore[arg-type]
            except lake.LakeError:
                assert names.LAKE not in store.objects or lake_on(store).verify("full").ok, where
            made = act(lake_on(store))
            assert read(lake_on(store), f"made@{made.version}") == rows_of(numbers(400)), where
            assert made.snapshot.entry.seq == seq, where
            assert len(lake_on(store).log("made")) == seq, where
            store.clock += 2 * GRACE
            lake_on(store).commit("made", [("a", {"x": 1})])
            lake_on(store).gc(dry_run=False, force=True)
            store.clock += GRACE + DAY
            lake_on(store).gc(dry_run=False, force=True)
            assert act(lake_on(store)).snapshot.entry == made.snapshot.entry, where
            assert len(keys_of(lake_on(store), f"made@{made.version}")) == 400, where


# --- fresh processes ------------------------------------------------------------------------------

_SCRIPT = """
import sys
import lake

SCALE = 2

def scaled(n, offset=0):
    return str(n), {"x": n * SCALE + offset}

def capturing(by):
    return lambda n: scaled(n * by)

made = lake.open(sys.argv[1], progress=False).derive("made", lake.from_iterable(range(9)).map(capturing(1)))
print(made.snapshot.entry.seq)
"""

SAME = {
    "a comment": ("    return str(n)", "    # scaled\n    return str(n)"),
    "another line": ("SCALE = 2\n", "\n\n\n\nSCALE = 2\n"),
    "a function between": ("def capturing(by):", "def unused(): ...\n\n\ndef capturing(by):"),
}
OTHER = {
    "a global constant": ("SCALE = 2", "SCALE = 3"),
    "the body": ("n * SCALE + offset", "n * SCALE - offset"),
    "a default argument": ("offset=0", "offset=1"),
    "a captured constant": ("capturing(1)", "capturing(2)"),
}


def seqs(folder: Path, *sources: str) -> list[int]:
    """What scripts print that a fresh process runs one after the other."""
    paths = [folder / f"{place}" / "their_script.py" for place in range(len(sources))]
    for path, source in zip(paths, sources, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    run = "import runpy, sys\nfor path in sys.argv[2:]:\n    runpy.run_path(path)"
    done = subprocess.run(
        [sys.executable, "-c", run, str(folder / "lake"), *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return [int(line) for line in done.stdout.split()]


def test_in_a_fresh_process_an_edit_computes_and_a_move_finds(tmp_path: Path):
    """Bodies, defaults, globals and captured constants count; lines and comments do not."""
    assert all(old in _SCRIPT for old, _ in (SAME | OTHER).values())
    assert seqs(tmp_path, _SCRIPT) == [1]
    assert seqs(tmp_path, *(_SCRIPT.replace(*edit, 1) for edit in SAME.values())) == [1, 1, 1]
    assert seqs(tmp_path, *(_SCRIPT.replace(*edit, 1) for edit in OTHER.values())) == [2, 3, 4, 5]


def test_a_tag_is_a_text(lk: Lake) -> None:
    """It enters the fingerprint as what it says, and 1 does not say what "1" does."""
    lk.commit("source", pa.table({"key": ["a"], "x": [1]}))
    with pytest.raises(TypeError, match="tag is a text, not int"):
        lk.derive("made", lk.dataset("source").samples(), tag=1)
