"""`lake.*` and the queries by name, asked of a small lake made for it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake import config
from lake.catalog.engine import VIEWS
from lake.catalog.files import query, statements
from lake.format import documents, names
from lake.repo import Lake
from lake.stores import open_store
from lake.stores.wrappers import CountingStore

BIRDS = pa.table(
    {
        "key": [f"k{i:04}" for i in range(2000)],
        "label": pa.array(["tit", "owl", None, "jay"] * 500).dictionary_encode(),
        "grams": pa.array([float("nan") if i % 100 == 7 else i / 4 for i in range(2000)], pa.float64()),
        "photo": [bytes([i % 251]) * 300 for i in range(2000)],
    }
)


@pytest.fixture(scope="module")
def lk(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Datasets `birds` (two versions, a tag), `copy` (its rows), `fish` (removed) and `none` (no rows)."""
    folder = tmp_path_factory.mktemp("relations")
    made = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)
    made.commit("birds", BIRDS[:1500], message="first", meta={"license": "CC0"}, shard_bytes="64KiB")
    made.commit("birds", BIRDS[1500:], mode="append", message="more", recipe=["camera"])
    made.commit("copy", BIRDS, shard_bytes="64KiB")
    made.commit("fish", BIRDS[:10])
    made.commit("none", BIRDS[:0], schema=BIRDS.schema)
    made.remove("fish")
    made.tag("birds@#1", "v1")
    return made


def _tag(made: Lake, name: str, tag: str, version: str | None, born: int = 1) -> None:
    document = {"version": version, "born": born}
    made.store.put(names.tag_key(name, tag), documents.canonical(document))


LAKE = lake.open("./nowhere")  # for statements that need none
EDGES = [edge * 1000**power for edge in (1, 9949, 9950, 9951, 999499, 999500, 1999) for power in range(4)]


def rows(lk: Lake, sql: str, **params: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = lk.sql(sql, params or None).fetchall()
    return found


def test_datasets_are_those_that_live(lk: Lake):
    """At their heads, by name; not one that was removed."""
    found = rows(
        lk, "select dataset, seq, rows, shards, bytes, raw_bytes, key, version, time from lake.datasets"
    )
    heads = {name: lk.dataset(name).snapshot for name in lk.datasets()}

    assert [row[0] for row in found] == ["birds", "copy", "none"] == sorted(heads)
    for name, *row, time in found:
        entry, document = heads[name].entry, heads[name].document
        plain = [document.rows, document.shards, document.bytes, document.raw_bytes, document.key]
        assert row == [entry.seq, *plain, entry.version]
        assert time == datetime.fromisoformat(entry.time)


def test_the_log_has_every_entry(lk: Lake):
    """Newest first within a dataset, also of one that was removed."""
    found = rows(lk, "select dataset, seq, operation, message, rows_added, rows_removed, born from lake.log")

    assert found == [
        ("birds", 2, "append", "more", 500, 0, 1),
        ("birds", 1, "overwrite", "first", 1500, 0, 1),
        ("copy", 1, "overwrite", None, 2000, 0, 1),
        ("fish", 2, "remove", None, 0, 10, 1),
        ("fish", 1, "overwrite", None, 10, 0, 1),
        ("none", 1, "overwrite", None, 0, 0, 1),
    ]
    [(first, last)] = rows(lk, "select min(time), max(time) from lake.log where dataset = 'birds'")
    assert first < last


def test_versions_have_meta_and_recipe_as_json(lk: Lake):
    """So that a query looks inside."""
    found = rows(
        lk, "select dataset, seq, rows, meta->>'license', recipe->>0 from lake.versions where seq < 3"
    )

    assert found == [
        ("birds", 2, 2000, "CC0", "camera"),
        ("birds", 1, 1500, "CC0", None),
        ("copy", 1, 2000, None, None),
        ("none", 1, 0, None, None),
    ]


def test_shards_are_those_of_the_manifest(lk: Lake):
    """In order, with the first row's number; digests in hex name parts that are in the store."""
    snapshot = lk.dataset("birds").snapshot
    found = rows(
        lk,
        "select shard, start, rows, raw_bytes, first_key, last_key, bytes, parts, version from lake.shards "
        "where dataset = 'birds' order by shard",
    )

    assert len(found) == len(snapshot.manifest) > 3
    start = 0
    for number, (shard, row) in enumerate(zip(snapshot.manifest.shards(), found, strict=True)):
        plain = (
            shard.rows,
            shard.raw_bytes,
            shard.first_key,
            shard.last_key,
            sum(p.bytes for p in shard.parts),
        )
        assert row[:7] == (number, start, *plain)
        assert [(p["digest"], p["content"], p["codec"], tuple(p["fields"])) for p in row[7]] == [
            (p.digest, p.content, p.codec, p.fields) for p in shard.parts
        ]
        assert row[8] == snapshot.version
        start += shard.rows
    assert rows(lk, "select count(*) from lake.shards where dataset = 'fish'") == [(0,)]


def test_columns_sum_up_the_statistics(lk: Lake):
    """Nulls, NaNs and bounds are those of the rows."""
    found = rows(
        lk,
        "select position, name, type, nulls, nans, min, max from lake.columns where dataset = 'birds' "
        "order by position",
    )

    assert [row[:5] for row in found] == [
        (0, "key", "large_string", 0, 0),
        (1, "label", "dictionary<values=large_string, indices=int32, ordered=0>", 500, 0),
        (2, "grams", "double", 0, 20),
        (3, "photo", "large_binary", 0, 0),
    ]  # fmt: skip
    bounds = {name: (low, high) for _, name, *_, low, high in found}
    assert bounds["key"] == ("k0000", "k1999")
    assert bounds["label"] == ("jay", "tit")
    assert (float(bounds["grams"][0]), float(bounds["grams"][1])) == (0.0, 499.75)
    assert bytes.fromhex(bounds["photo"][0]) <= bytes(300)
    sizes = dict(rows(lk, "select name, bytes from lake.columns where dataset = 'birds'"))
    parts = rows(lk, "select fields, sum(bytes) from lake.parts('birds') group by fields")
    assert sizes == {field: size for fields, size in parts for field in fields}


def test_unknown_statistics_stay_unknown(lk: Lake):
    """A nested column has no bounds, and a dataset without rows has none."""
    lk.commit("nested", pa.table({"key": ["a"], "n": [[1, 2]]}))
    found = rows(lk, "select name, nulls, min, max from lake.columns where dataset in ('nested', 'none')")

    assert {name: row for name, *row in found if name == "n"} == {"n": [0, None, None]}
    assert all(low is None and high is None for name, _, low, high in found if name in ("label", "grams"))


def test_tags_are_those_of_the_present_life(lk: Lake):
    """One with an older `born` counts as absent."""
    _tag(lk, "birds", "old", lk.dataset("birds").version, born=7)

    assert rows(lk, "select dataset, tag, version, seq from lake.tags") == [
        ("birds", "v1", lk.dataset("birds@v1").version, 1)
    ]
    assert rows(lk, "select t.time >= l.time from lake.tags t join lake.log l using (dataset, seq)") == [
        (True,)
    ]
    assert rows(lk, 'select count(*) from "birds@v1"') == [(1500,)]
    assert rows(lk, "from lake.derived") == []


def test_derived_pointers_name_their_sources(lk: Lake):
    """As JSON, as `derive` recorded them."""
    fingerprint, version = "ab" * 32, lk.dataset("copy").version
    pointer = {"version": version, "born": 1, "sources": [{"birds": "x"}]}
    lk.store.put(names.derived_key("copy", fingerprint), documents.canonical(pointer))

    found = rows(lk, "select dataset, fingerprint, version, sources->0->>'birds' from lake.derived")

    assert found == [("copy", fingerprint, version, "x")]


def test_the_cache_is_listed(lk: Lake):
    """What it holds, with how and how large."""
    digest = documents.sha256_hex(b"held")
    lk.cache.blob(digest, lambda: b"held")

    found = rows(lk, "select layout, bytes from lake.cache where digest = $digest", digest=digest)

    assert found == [("document", 4)]


@pytest.fixture
def counted(lk: Lake, tmp_path: Path) -> tuple[Lake, CountingStore]:
    store = CountingStore(open_store(lk.url))
    return Lake(store, config.resolve(lk.url, cache_dir=tmp_path)), store


@pytest.mark.parametrize("relation", ["datasets", "log", "versions", "shards", "columns", "tags", "derived"])
def test_only_the_datasets_asked_for_are_read(counted: tuple[Lake, CountingStore], relation: str):
    """A filter on `dataset` reaches the documents, whatever else the condition says."""
    quiet, store = counted
    before = _read(store)
    conditions = (
        "dataset = 'birds'",
        "dataset in ('birds', 'nobody')",
        "dataset = 'birds' and version <> 'x'",
    )
    for condition in conditions:
        rows(quiet, f"select count(*) from lake.{relation} where {condition}")

    read = {key for key in _read(store) - before if key.startswith("datasets/")}
    assert read
    assert {key.split("/")[1] for key in read} == {"birds"}


def test_what_is_not_asked_for_is_not_read(counted: tuple[Lake, CountingStore]):
    """A statement over a dataset reads nothing of the others, and no statistics to count rows."""
    quiet, store = counted
    rows(quiet, "select count(*) from birds")

    read = {key for key in _read(store) if not key.startswith("names/")}
    assert {key.split("/")[1] for key in read if key.startswith("datasets/")} == {"birds"}
    assert not [key for key in read if key.startswith(("manifests/", "shards/"))]


def test_each_statement_sees_the_newest_heads(lk: Lake):
    """A catalog keeps no copy of what may change."""
    before = rows(lk, "select count(*) from lake.log where dataset = 'growing'")
    lk.commit("growing", BIRDS[:1])
    middle = rows(lk, "from lake.datasets select rows where dataset = 'growing'")
    lk.commit("growing", BIRDS[:2])

    assert (before, middle) == ([(0,)], [(1,)])
    assert rows(lk, "select count(*) from growing") == [(2,)]


def test_rows_of_a_dataset_join_its_manifest(lk: Lake):
    """Which shard a row lies in, in one statement."""
    found = rows(
        lk,
        "select s.shard, count(*) from birds b join lake.shards s on s.dataset = 'birds' "
        "and b.key between s.first_key and s.last_key group by s.shard order by s.shard",
    )

    assert [count for _, count in found] == lk.dataset("birds").snapshot.manifest.rows.tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10**17) | st.sampled_from(EDGES), min_size=1))
def test_sizes_are_written_as_elsewhere(sizes: list[int]):
    """`lake.size_text` agrees with the command's own."""
    found = rows(LAKE, "select lake.size_text(n) from (select unnest($sizes::bigint[]) as n)", sizes=sizes)

    assert [text for (text,) in found] == [config.format_bytes(size) for size in sizes]


def test_a_share_of_nothing_is_unknown(lk: Lake):
    """Not an error."""
    asked = "select lake.share(1, 3), lake.share(1, 0), lake.share(0, 5), lake.size_text(null)"

    assert rows(lk, asked) == [(0.333, None, 0.0, None)]


def named(lk: Lake, name: str, **params: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        lk.sql(query(name, params).text, params or None).to_arrow_table().to_pylist()
    )
    return found


GOLDEN: dict[str, tuple[dict[str, str], tuple[str, ...], list[tuple[Any, ...]]]] = {
    "sizes": ({}, ("dataset", "rows"), [("copy", 2000), ("birds", 2000), ("none", 0)]),
    "history": (
        {"dataset": "birds"},
        ("seq", "operation", "rows_added", "rows_removed", "message"),
        [(2, "append", 500, 0, "more"), (1, "overwrite", 1500, 0, "first")],
    ),
    "growth": (
        {},
        ("dataset", "commits", "rows_added", "rows_removed"),
        [("birds", 2, 2000, 0), ("copy", 1, 2000, 0), ("fish", 2, 10, 10), ("none", 1, 0, 0)],
    ),
    "parts": ({"dataset": "birds"}, ("fields",), [(["key", "label", "grams"],), (["photo"],)]),
    "shared": ({}, ("dataset", "other"), [("birds", "copy")]),
    "nulls": (
        {},
        ("dataset", "name", "nulls", "null_share", "nans"),
        [
            ("birds", "label", 500, 0.25, 0),
            ("copy", "label", 500, 0.25, 0),
            ("birds", "grams", 0, 0.0, 20),
            ("copy", "grams", 0, 0.0, 20),
        ],
    ),
    "largest_shards": (
        {},
        ("dataset", "rows", "parts"),
        [],
    ),  # filled in below: where shards end is the format's
    "growth_by_version": (
        {"dataset": "birds"},
        ("seq", "rows", "rows_more"),
        [(1, 1500, 1500), (2, 2000, 500)],
    ),
    "dedup": ({}, ("dataset", "commits"), [("birds", 2), ("copy", 1), ("fish", 2), ("none", 1)]),
    "orphans": ({}, ("kind",), [("part",), ("part",), ("segment",), ("version",)]),  # what was of fish alone
    "labels": (
        {"dataset": "birds", "column": "label"},
        ("value", "rows", "share"),
        [("jay", 500, 0.25), ("owl", 500, 0.25), ("tit", 500, 0.25), (None, 500, 0.25)],
    ),
    "duplicates": ({}, ("datasets", "copies"), []),
    "lineage": (
        {},
        ("source", "source_version", "source_is_head", "dataset"),
        [("birds", "", True, "spectra"), ('odd "one', "x", None, "spectra")],
    ),
    "cached": ({}, ("dataset", "parts_cached", "share"), [("birds", 0, None), ("copy", 0, None)]),
}


@pytest.fixture(scope="module")
def golden(lk: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The same datasets in a lake that no other test changes, and `spectra`, derived from `birds`."""
    folder = tmp_path_factory.mktemp("golden")
    made = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)
    made.commit("birds", BIRDS[:1500], message="first", shard_bytes="64KiB")
    made.commit("birds", BIRDS[1500:], mode="append", message="more")
    made.commit("copy", BIRDS, shard_bytes="64KiB")
    made.commit("fish", BIRDS[:10])
    made.commit("none", BIRDS[:0], schema=BIRDS.schema)
    made.remove("fish")
    return made


@pytest.mark.parametrize("name", GOLDEN)
def test_a_query_answers_as_it_says(golden: Lake, name: str):
    """Its rows over a lake that is known, where they do not depend on a codec or on where shards end."""
    params, columns, expected = GOLDEN[name]
    if name == "lineage":
        head = golden.dataset("birds").version
        made = golden.commit("spectra", BIRDS[:5])
        pointer = {"version": made.id, "born": 1, "sources": {"birds": head, 'odd "one': "x"}, "time": None}
        golden.store.put(names.derived_key("spectra", "ab" * 32), documents.canonical(pointer))
        expected = [(source, version or head, *rest) for source, version, *rest in expected]
    if name == "largest_shards":
        manifests = {dataset: golden.dataset(dataset).snapshot.manifest for dataset in golden.datasets()}
        expected = [(d, s.rows, len(s.parts)) for d, manifest in manifests.items() for s in manifest.shards()]
    if name == "duplicates":
        shared = rows(
            golden, "select count(*) from (from lake.parts('birds')) join lake.parts('copy') using (digest)"
        )
        expected = [(["birds", "copy"], 1)] * shared[0][0]
        assert expected

    found = [tuple(row[column] for column in columns) for row in named(golden, name, **params)]

    assert sorted(found, key=str) == sorted(expected, key=str)
    if name == "lineage":
        golden.remove("spectra")


def test_every_query_has_a_golden_result():
    """A new one is not forgotten."""
    assert set(GOLDEN) == set(statements("queries"))


def test_sums_of_queries_agree_with_the_documents(lk: Lake):
    """Bytes that depend on a codec are those that the version says."""
    document = lk.dataset("birds").snapshot.document
    entries = lk.log("birds")

    assert sum(row["bytes"] for row in named(lk, "parts", dataset="birds")) == document.bytes
    assert sum(row["bytes_new"] for row in named(lk, "history", dataset="birds")) == sum(
        e.bytes_new for e in entries
    )
    [shared] = [row for row in named(lk, "shared") if (row["dataset"], row["other"]) == ("birds", "copy")]
    assert 0 < shared["bytes"] <= document.bytes


def test_objects_tell_what_is_stored_and_what_is_reached(golden: Lake):
    """As many bytes as the store has of parts; no part of a head is an orphan."""
    [(total,)] = rows(golden, "select sum(bytes) from lake.objects where kind = 'part'")
    stored = [found.size for found in golden.store.list("shards/")]
    orphans = {key for (key,) in rows(golden, "select key from lake.objects where not reached")}

    assert total == sum(stored)
    assert all(names.parse_key(key) is not None and golden.store.get(key) for key in orphans)
    reached = {key for (key,) in rows(golden, "select key from lake.objects where reached")}
    for name in golden.datasets():
        for shard in golden.dataset(name).snapshot.manifest.shards():
            assert {names.part_key(part.digest) for part in shard.parts} <= reached - orphans


def _read(store: CountingStore) -> set[str]:
    return {key for _, key in store.calls}


def test_a_bucket_answers_as_a_folder_does(s3_url: str, tmp_path: Path):
    """Documents and rows through the cache."""
    remote = lake.open(s3_url, cache_dir=tmp_path / "cache", progress=False)
    remote.commit("birds", BIRDS[:300], shard_bytes="64KiB")

    assert rows(remote, "select dataset, rows from lake.datasets") == [("birds", 300)]
    assert rows(remote, "select sum(rows) from lake.shards") == [(300,)]
    assert rows(remote, "select nulls from lake.columns where name = 'label'") == [(75,)]
    assert rows(remote, "select count(*), min(key) from birds") == [(300, "k0000")]
    assert named(remote, "cached")[0]["parts_cached"] > 0


@pytest.mark.parametrize(
    "sql",
    [
        *(f"from lake.{view}" for view in VIEWS if view != "cache"),
        "from lake.parts('birds')",
        "describe lake.log",
    ],
)
def test_where_there_is_no_lake_that_is_said(tmp_path: Path, sql: str):
    """At once, as everywhere else in Python; what asks nothing of a lake works without one."""
    nowhere = lake.open(tmp_path / "nowhere", cache_dir=tmp_path / "cache")

    with pytest.raises(lake.NotFoundError, match="no lake at"):
        nowhere.sql(sql)
    assert nowhere.sql("select count(*) from lake.cache").fetchall() == [(0,)]
