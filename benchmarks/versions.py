"""Long histories and large versions: what they cost to open, plan, append to and query.

Version documents, segments and log entries are written as commits write them, without the parts, whose bytes
none of this reads. The large version has shards of 64 MiB with a light and a heavy part of some 64 record
batches. Each step is a process of its own, with nothing remembered; its memory is the most that it ever held.
Seconds are of the processor, all threads together. Requests are counted on a lake that is seen as a bucket.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lake
from benchmarks.peers.tasks import peak_memory
from benchmarks.report import Bar, cpu_seconds, median_and_spread, table, versions, workspace
from lake import commit
from lake.format import log, names
from lake.format.part import batch_rows
from lake.format.segment import encode_table, segment_cuts
from lake.format.shards import segment_schema
from lake.format.values import Cuts, SegmentRef, VersionDocument
from lake.format.version import data_digest, encode_version, version_id
from lake.guard import Guard
from lake.repo import Lake
from lake.stores import LocalStore
from lake.stores.wrappers import CountingStore

NAME = "large"
SCHEMA = pa.schema([("key", pa.large_string()), ("label", pa.int64()), ("image", pa.large_binary())])
TARGET = 64 * 2**20
LIGHT = ("key", "label")
HEAVY = ("image",)
SHORT = 32  # segments at the end that are as large as short ones may be, and not merged yet
SUM = "select count(*), sum(rows), sum(bytes), min(first_key), max(last_key) from lake.shards"

Figures = dict[str, Any]


# --- a large version --------------------------------------------------------------------------


def large(lk: Lake, shards: int, *, seed: int = 0) -> None:
    """Make a dataset `large` whose only version has so many shards; nothing of it is in memory at once."""
    rng = np.random.default_rng(seed)
    guard = Guard(lk.store, commit.prepare(lk.refs).grace)
    cuts = rng.integers(0, 2**64, shards, np.uint64)
    refs, first = [], 0
    for start, end in pairwise([0, *_ends(cuts)]):
        ref, data = encode_table(_rows(rng, cuts[start:end], first))
        lk.store.put_new(names.segment_key(ref.digest), data)
        refs.append(ref)
        first += ref.rows
    document = _document(tuple(refs), chain=rng.bytes(32).hex())
    draft = commit.Draft("overwrite", document, tuple((ref, None) for ref in refs))
    commit.land(
        lk.refs, guard, NAME, lk.refs.base(NAME), lambda _: draft, commit.Signature.of(None, "synthetic")
    )


def _ends(cuts: np.ndarray) -> list[int]:
    """Where segments end: by content, but for some short ones at the end, as many small appends leave them."""
    short = min(1000, len(cuts) // (4 * SHORT))
    settled = len(cuts) - SHORT * short
    return [*segment_cuts(cuts[:settled].tolist()), *range(settled + short, len(cuts) + 1, short)]


def _rows(rng: np.random.Generator, cuts: np.ndarray, first: int) -> pa.Table:
    """The rows of one segment, whose first shard begins with that row of the version."""
    wanted = segment_schema(SCHEMA, "key")
    rows = rng.integers(5_000, 8_000, len(cuts))
    starts = first + np.cumsum(rows) - rows
    raw = rng.integers(TARGET // 2, TARGET, len(cuts))
    first_key, last_key = _keys(starts), _keys(starts + rows - 1)
    counts = pa.StructArray.from_arrays(
        [first_key, last_key, *[pa.array(np.zeros(len(cuts), np.int64))] * 2],
        fields=list(wanted.field("stats").type.field("key").type),
    )
    known = {
        "rows": pa.array(rows),
        "raw_bytes": pa.array(raw),
        "first_key": first_key,
        "last_key": last_key,
        "cut": pa.array(cuts),
        "parts": _parts(rng, rows, raw, wanted.field("parts").type),
        "stats": _statistics(counts, rng, len(cuts), wanted.field("stats").type),
    }
    return pa.Table.from_arrays([known[field.name] for field in wanted], schema=wanted)


def _keys(rows: np.ndarray) -> pa.Array:
    return pa.array(np.char.add("image-", np.char.zfill(rows.astype("U12"), 12))).cast(pa.large_string())


def _statistics(key: pa.StructArray, rng: np.random.Generator, shards: int, type_: pa.DataType) -> pa.Array:
    none = pa.array(np.zeros(shards, np.int64))
    label = [pa.array(rng.integers(0, 10, shards)), pa.array(rng.integers(990, 1000, shards)), none, none]
    members = []
    for field in type_:
        if field.name == "key":
            members.append(key)
        elif field.name == "label":
            members.append(pa.StructArray.from_arrays(label, fields=list(field.type)))
        else:
            unknown = [pa.nulls(shards, member.type) for member in field.type]
            members.append(pa.StructArray.from_arrays(unknown, fields=list(field.type)))
    return pa.StructArray.from_arrays(members, fields=list(type_))


def _parts(rng: np.random.Generator, rows: np.ndarray, raw: np.ndarray, type_: pa.ListType) -> pa.Array:
    """Two parts a shard: first the light ones' numbers, then the heavy ones', taken in turn."""
    part, shards = type_.value_type, len(rows)
    turns = np.arange(2 * shards).reshape(2, shards).T.ravel()
    both = np.tile(rows, 2)[turns]
    held = np.concatenate([rows * 24, raw])[turns]
    size = batch_rows(both, held, TARGET)
    count = -(-both // size)
    batches, stored = _batches(rng, both, held, size, count, part.field("batches").type)
    words = [LIGHT if turn < shards else HEAVY for turn in turns]
    ends = np.cumsum([0, *map(len, words)])
    fields = pa.array([name for names_ in words for name in names_])
    known = {
        "digest": _octets(rng, 2 * shards, 32),
        "content": _octets(rng, 2 * shards, 32),
        "bytes": pa.array(stored),
        "raw_bytes": pa.array(held),
        "codec": pa.array(["none"] * (2 * shards)),
        "fields": pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), fields, type=part.field("fields").type
        ),
        "batches": batches,
    }
    items = pa.StructArray.from_arrays([known[field.name] for field in part], fields=list(part))
    return pa.ListArray.from_arrays(pa.array(np.arange(0, 2 * shards + 1, 2), pa.int32()), items, type=type_)


def _batches(
    rng: np.random.Generator,
    rows: np.ndarray,
    raw: np.ndarray,
    size: np.ndarray,
    count: np.ndarray,
    type_: pa.ListType,
) -> tuple[pa.Array, np.ndarray]:
    """The record batches of each part, one after the other in its file, and the size of the file."""
    ends = np.cumsum(count)
    number = np.arange(ends[-1]) - np.repeat(ends - count, count)
    whole = np.repeat(size, count)
    held = np.where(number == np.repeat(count, count) - 1, np.repeat(rows, count) - number * whole, whole)
    length = (held * np.repeat(raw // rows, count) // 8 + 1) * 8
    step = 256 + length
    before = np.cumsum(step) - step
    offset = 264 + before - np.repeat(before[ends - count], count)
    known = {
        "offset": pa.array(offset),
        "meta_length": pa.array(np.full(len(held), 256, np.int32)),
        "length": pa.array(length),
        "rows": pa.array(held),
        "check": _octets(rng, len(held), 8),
    }
    batch = type_.value_type
    items = pa.StructArray.from_arrays([known[field.name] for field in batch], fields=list(batch))
    lists = pa.ListArray.from_arrays(pa.array([0, *ends.tolist()], pa.int32()), items, type=type_)
    return lists, 264 + np.add.reduceat(step, ends - count) + 512


def _octets(rng: np.random.Generator, number: int, width: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), number, [None, pa.py_buffer(rng.bytes(number * width))])


def _document(refs: tuple[SegmentRef, ...], *, chain: str) -> VersionDocument:
    totals = {
        member: sum(getattr(ref, member) for ref in refs)
        for member in ("rows", "shards", "bytes", "raw_bytes")
    }
    return VersionDocument(
        schema=SCHEMA,
        segments=refs,
        cuts=Cuts(1, 0, TARGET),
        key="key",
        vocab={},
        meta=None,
        recipe=None,
        chain=chain,
        data=data_digest(SCHEMA, "key", {}, None, None, chain),
        **totals,
    )


# --- what is asked of it ----------------------------------------------------------------------


def opened(folder: Path) -> Lake:
    """The lake, with a cache beside it."""
    return lake.open(folder / "lake", cache_dir=folder / "cache", cache_budget="unlimited", progress=False)


def _more(rows: int) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table({"key": _keys(numbers), "label": numbers, "image": pa.array([b"x" * 99] * rows)})


def open_(lk: Lake) -> Any:
    """The head, and how many rows it has."""
    return len(lk.dataset(NAME))


def plan(lk: Lake) -> Any:
    """The number of batches of a shuffled epoch: all of its plan."""
    return len(lk.dataset(NAME).scan(batch_size=1024, shuffle=True))


def append(lk: Lake) -> Any:
    """A hundred rows more."""
    return lk.commit(NAME, _more(100), mode="append").seq


def aggregate(lk: Lake) -> Any:
    """One row about all shards."""
    return lk.sql(SUM).fetchall()[0]


def columns(lk: Lake) -> Any:
    """What the head's columns hold, by the statistics of all shards."""
    return lk.sql("select name, nulls, min, max, bytes from lake.columns order by position").fetchall()


STEPS: dict[str, Callable[[Lake], Any]] = {
    "open": open_,
    "plan an epoch": plan,
    "the same again": plan,
    "append, merging the tail": append,
    "append": append,
    "lake.shards, an aggregate": aggregate,
    "lake.columns": columns,
}
_ONCE = "append, merging the tail"  # there is one to merge


def alone(folder: Path, step: str) -> Figures:
    """Carry a step out in a fresh process: seconds, memory, what it gave."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        return pool.apply(_carry_out, (folder, step))


def _carry_out(folder: Path, step: str) -> Figures:
    lk = opened(folder)
    at_rest, given = peak_memory(), []
    taken = cpu_seconds(lambda: given.append(STEPS[step](lk)))
    return {"seconds": taken, "peak_bytes": peak_memory(), "at_rest_bytes": at_rest, "gave": str(given[0])}


def measured(folder: Path, step: str, rounds: int) -> Figures:
    """What a step took in some rounds."""
    found = [alone(folder, step) for _ in range(1 if step == _ONCE else rounds)]
    return {
        "seconds": median_and_spread([each["seconds"] for each in found]),
        "peak_bytes": max(each["peak_bytes"] for each in found),
        "at_rest_bytes": max(each["at_rest_bytes"] for each in found),
        "gave": found[0]["gave"],
    }


# --- a long history ---------------------------------------------------------------------------


class Bucket(CountingStore):
    """A folder of which nothing is mapped: every byte is asked for, as of a bucket."""

    def local_path(self, key: str) -> None:
        return None


def long(lk: Lake, name: str, length: int) -> None:
    """A dataset with so many versions, all different."""
    lk.commit(name, _more(3))
    entry = lk.log(name)[0]
    document = lk.refs.version(name, str(entry.version))
    for seq in range(2, length + 1):
        said = replace(document, meta={"seq": seq})
        data = encode_version(
            replace(said, data=data_digest(said.schema, said.key, {}, said.meta, None, said.chain))
        )
        made = version_id(data)
        lk.store.put_new(names.version_key(name, made), data)
        entry = replace(entry, seq=seq, version=made, parent=entry.version, txn=f"{seq}")
        lk.store.put_new(names.log_key(name, seq), log.encode_entry(entry))
    lk.store.put(names.head_key(name), str(length).encode())


def requests(folder: Path, length: int) -> Figures:
    """Requests and bytes of opening the head and of a commit, with a history of that length."""
    name = f"of-{length}"
    store = Bucket(LocalStore(folder / name))
    settings = lake.open(folder / name, cache_dir=folder / f"cache-{length}").settings
    long(Lake(store, settings, progress=False), name, length)
    fresh = Lake(store, replace(settings, cache_dir=folder / f"cache-{length}-fresh"), progress=False)
    found: Figures = {}
    for what, act in _ASKED.items():
        store.reset()
        act(fresh, name)
        found[what] = {"requests": sum(store.counts.values()), "read_bytes": store.bytes_read}
    return found


_ASKED: dict[str, Callable[[Lake, str], object]] = {
    "open the head": lambda lk, name: lk.dataset(name),
    "commit": lambda lk, name: lk.commit(name, _more(5), mode="append"),
}


# --- figures ----------------------------------------------------------------------------------


def run(quick: bool) -> Figures:
    """Measure. Quick: a tenth of the shards and of the history, one round."""
    shards, length, rounds = (100_000, 1_000, 1) if quick else (1_000_000, 10_000, 5)
    with workspace() as folder:
        large(opened(folder), shards)
        steps = {step: measured(folder, step, rounds) for step in STEPS}
    with workspace() as folder:
        histories = {str(each): requests(folder, each) for each in (10, length)}
    return {
        "versions": versions("pyarrow", "numpy", "duckdb"),
        "shards": shards,
        "steps": steps,
        "histories": histories,
    }


def bars(figures: Figures) -> list[Bar]:
    """Bar 15 but for what planning decides by itself, which `benchmarks.plan` measures."""
    steps, what = figures["steps"], f"{figures['shards']:,} shards"
    ready = sum(steps[step]["seconds"][0] for step in ("open", "plan an epoch"))
    most = max(step["peak_bytes"] for step in steps.values())
    few, many = figures["histories"].values()
    same = all(few[each]["requests"] == many[each]["requests"] for each in few)
    asked = ", ".join(f"{each} {of['requests']}" for each, of in many.items())
    return [
        Bar(15, f"open and plan {what}", "≤ 10 s", f"{ready:.1f} s of the processor", ready <= 10),
        Bar(15, f"any step on {what}: memory of the process", "≤ 2 GB", f"{most / 1e9:.2f} GB", most <= 2e9),
        Bar(15, "requests to open and to commit, long history or short", "the same", asked, same),
    ]


def page(figures: Figures) -> str:
    """The tables as Markdown."""
    steps = [
        [step, f"{of['seconds'][0]:.2f} ±{of['seconds'][1]:.2f} s", f"{of['peak_bytes'] / 1e6:,.0f} MB"]
        for step, of in figures["steps"].items()
    ]
    histories = [
        [f"{int(length):,} versions", *(f"{of[each]['requests']}" for each in _ASKED)]
        for length, of in figures["histories"].items()
    ]
    bare = max(of["at_rest_bytes"] for of in figures["steps"].values())
    return "\n\n".join(
        [
            f"A version of {figures['shards']:,} shards, {int(figures['steps']['open']['gave']):,} rows.",
            table(
                ["step", "takes", "memory"], [*steps, ["Python and lake alone", "", f"{bare / 1e6:,.0f} MB"]]
            ),
            "Requests, whatever the history:",
            table(["dataset", *_ASKED], histories),
        ]
    )


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the tables say it all."""
