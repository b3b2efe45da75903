"""Updating rows, adding columns: the right values in the right rows, and no byte written that did not change."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.stores.wrappers import CountingStore
from tests.changing import FULL, SHARD, Meanwhile, Rows, birds, lake_of, over, read, shards, table, written


def changes(rows: Rows, *columns: str) -> pa.Table:
    """Key and these columns of rows, as a table."""
    return table(rows, "key", *columns)


# --- update_rows --------------------------------------------------------------------------------


@settings(max_examples=50 if FULL else 12, deadline=None)
@given(
    count=st.integers(1, 120),
    new=st.dictionaries(
        st.integers(0, 140), st.tuples(st.none() | st.integers(-9, 9), st.sampled_from("abcd")), max_size=30
    ),
    insert=st.booleans(),
)
def test_updating_rows_is_updating_a_dict(count: int, new: dict[int, Any], insert: bool):
    """Rows keep their places; keys that are not there are refused, or with insert= come last in the data's order."""
    with tempfile.TemporaryDirectory() as folder:
        lk = lake_of(folder, birds(count))
        data = [{"key": f"k{n:05}", "x": x, "label": label} for n, (x, label) in new.items()]
        unknown = [row["key"] for row in data if row["key"] >= f"k{count:05}"]
        if not data:
            return
        if unknown and not insert:
            with pytest.raises(lake.NotFoundError) as caught:
                lk.update_rows("birds", changes(data, "x", "label"))
            assert all(repr(key) in str(caught.value) for key in unknown[:5])
            assert f"{len(unknown)} keys" in str(caught.value)
            assert read(lk) == birds(count)
            return
        model = {row["key"]: row for row in birds(count)}
        for row in data:
            model[row["key"]] = {"image": None} | model.get(row["key"], {}) | row

        made = lk.update_rows("birds", changes(data, "x", "label"), insert=insert)

        assert read(lk) == [
            {name: row[name] for name in ("key", "x", "label", "image")} for row in model.values()
        ]
        assert made.rows == count + len(unknown)
        assert lk.dataset("birds").count("x is null") == sum(row["x"] is None for row in model.values())


def test_fixing_ten_labels_uploads_light_parts_only(tmp_path: Path):
    """No byte of an image is written again, and only the shards that hold the ten rows are touched."""
    rows = [row | {"image": row["image"] * 10} for row in birds(400)]
    lk = lake.open(tmp_path, progress=False)
    lk.commit("birds", table(rows), shard_bytes="64KiB")
    before = shards(lk)
    assert all(len(shard.parts) == 2 for shard in before)
    counting = CountingStore(lk.store)
    ten = [row | {"label": "z"} for row in rows[200:205] + rows[300:305]]

    made = over(lk, counting).update_rows("birds", changes(ten, "label"))

    hit = [(old, new) for old, new in zip(before, shards(lk), strict=True) if old != new]
    light = [part for _, new in hit for part in new.parts if "label" in part.fields]
    assert len(before) > 30
    assert 2 <= len(hit) <= 10
    assert sum(part.bytes for part in light) == made.bytes_new
    assert len(written(counting)) == len(hit)
    assert counting.bytes_written < 60_000 < len(rows[0]["image"]) * 10
    heavy = [[part for part in shard.parts if "image" in part.fields] for shard in before]
    assert heavy == [[part for part in shard.parts if "image" in part.fields] for shard in shards(lk)]
    assert [row["label"] for row in read(lk, columns=["label"])].count("z") == 10


def test_a_key_twice_in_the_data_is_refused(tmp_path: Path):
    """It is named; two rows of the dataset with one key both change."""
    rows = birds(30)
    lk = lake_of(tmp_path, [*rows, rows[7]])
    twice = changes([rows[7], rows[3], rows[7]], "label")

    with pytest.raises(ValueError, match="key 'k00007' is in the data 2 times"):
        lk.update_rows("birds", twice)
    lk.update_rows("birds", changes([rows[7] | {"label": "z"}], "label"))
    assert [n for n, row in enumerate(read(lk)) if row["label"] == "z"] == [7, 30]


def test_rows_without_a_key_are_never_met(tmp_path: Path):
    """Null in the dataset is no key, not even of the empty text; null in the data is refused."""
    rows = birds(30)
    rows[4]["key"] = None
    lk = lake_of(tmp_path, rows)

    with pytest.raises(lake.NotFoundError, match="1 keys are not in 'birds', first ''"):
        lk.update_rows("birds", pa.table({"key": [""], "x": [1]}))
    with pytest.raises(ValueError, match="1 rows without a key"):
        lk.update_rows("birds", pa.table({"key": pa.array([None], pa.string()), "x": [1]}))
    assert read(lk) == rows


@pytest.mark.parametrize("keys", [[3, 1, 2**40, -5], [b"\xff", b"", b"a", b"b"], [1.5, -0.5, 2.0, 3.0]])
def test_keys_of_any_type_join(tmp_path: Path, keys: list[Any]):
    """Integers, binaries and floats as well as strings, in whatever order."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"id": keys, "x": [0, 1, 2, 3]}), key="id")

    lk.update_rows("n", pa.table({"x": [30, 10], "id": [keys[3], keys[1]]}))
    lk.add_columns("n", pa.table({"y": [2.5, 0.5], "id": [keys[2], keys[0]]}))

    assert [row["x"] for row in read(lk, "n")] == [0, 10, 2, 30]
    assert [row["y"] for row in read(lk, "n")] == [0.5, None, 2.5, None]


def test_dates_join_too(tmp_path: Path):
    """Their statistics are integers, which tell nothing of the data's span."""
    days = pa.array([1, 2, 3], pa.date32())
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"day": days, "x": [0, 1, 2]}), key="day")

    lk.update_rows("n", pa.table({"day": days[1:2], "x": [10]}))

    assert [row["x"] for row in read(lk, "n")] == [0, 10, 2]


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ({"key": ["k00001"], "z": [1]}, lake.SchemaError, "no column 'z' to update"),
        ({"key": ["k00001"]}, lake.SchemaError, "nothing but the key"),
        ({"x": [1]}, lake.SchemaError, "lacks the key column 'key' of 'birds'; it has x"),
        ({"key": ["k00001"], "x": ["one"]}, lake.SchemaError, "'x' is int64 and cannot take string"),
        ({"key": ["k00001"], "x": [1.5]}, lake.SchemaError, "'x'"),
        ({"key": [1], "x": [1]}, lake.SchemaError, "'key' is string and cannot take int64"),
    ],
)
def test_data_that_cannot_update_is_refused(
    tmp_path: Path, data: dict[str, Any], kind: type[Exception], message: str
):
    """The message names the column and both types; nothing is written."""
    lk = lake_of(tmp_path, birds(20))
    counting = CountingStore(lk.store)

    with pytest.raises(kind, match=message):
        over(lk, counting).update_rows("birds", pa.table(data))
    assert written(counting) == []
    assert len(lk.log("birds")) == 1


def test_a_null_for_a_column_that_has_none_is_refused(tmp_path: Path):
    """Declared not null stays not null, also for rows that are inserted without a value."""
    schema = pa.schema(
        [pa.field("key", pa.string()), pa.field("x", pa.int64(), nullable=False), ("y", pa.int8())]
    )
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"key": ["a", "b"], "x": [1, 2], "y": [1, 2]}, schema))

    with pytest.raises(lake.SchemaError, match="'x', row 0: null"):
        lk.update_rows("n", pa.table({"key": ["a"], "x": pa.array([None], pa.int64())}))
    with pytest.raises(lake.SchemaError, match="cannot lack 'x'"):
        lk.update_rows("n", pa.table({"key": ["c"], "y": pa.array([3], pa.int8())}), insert=True)
    assert read(lk, "n") == [{"key": "a", "x": 1, "y": 1}, {"key": "b", "x": 2, "y": 2}]


def test_a_dataset_without_key_cannot_be_updated(tmp_path: Path):
    """Rows cannot be told apart; adding columns by position can."""
    lk = lake_of(tmp_path, birds(30), key=None)

    with pytest.raises(ValueError, match="without a key"):
        lk.update_rows("birds", changes(birds(3), "x"))
    lk.add_columns("birds", pa.table({"n": range(30)}))
    assert [row["n"] for row in read(lk)] == list(range(30))


def test_values_of_dictionary_columns_are_added_at_their_end(tmp_path: Path):
    """Codes that were given never change: new values follow, from an update, an insert or an added column."""
    labels = pa.array(["b", "a", None, "b"]).dictionary_encode()
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"key": list("klmn"), "label": labels}))
    assert lk.dataset("n").vocab("label") == ["b", "a"]

    lk.update_rows("n", pa.table({"key": ["l", "z"], "label": ["zebra", "c"]}), insert=True)

    assert lk.dataset("n").vocab("label") == ["b", "a", "c", "zebra"]
    assert [row["label"] for row in read(lk, "n")] == ["b", "zebra", None, "b", "c"]
    kinds = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1, 0, 1]), ["one", "two"])
    lk.add_columns("n", pa.table({"kind": kinds}))
    assert lk.dataset("n").vocab("kind") == ["one", "two"]
    assert lk.dataset("n").take([0], columns=["kind"])["kind"].combine_chunks().indices.to_pylist() == [1]


def test_a_column_that_was_always_null_takes_any_type(tmp_path: Path):
    """As an append may."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"key": ["a", "b"], "x": pa.nulls(2)}))

    lk.update_rows("n", pa.table({"key": ["b"], "x": [2.5]}))

    assert read(lk, "n") == [{"key": "a", "x": None}, {"key": "b", "x": 2.5}]
    assert lk.dataset("n").schema.field("x").type == pa.float64()


def test_a_column_may_be_updated_in_shards_that_lack_it(tmp_path: Path):
    """Rows from before the column was there get a part for it; their neighbours stay null."""
    lk = lake_of(tmp_path, birds(40))
    lk.commit("birds", table(birds(5, 40)).append_column("y", pa.array(range(5))), mode="append")

    lk.update_rows("birds", pa.table({"key": ["k00003", "k00041"], "y": [33, 41]}))

    expected = [None] * 40 + [0, 41, 2, 3, 4]
    expected[3] = 33
    assert [row["y"] for row in read(lk)] == expected


def test_updating_to_what_is_there_makes_no_version(tmp_path: Path):
    """The head stays what it is."""
    lk = lake_of(tmp_path, birds(50))

    assert lk.update_rows("birds", changes(birds(20), "x", "label")).seq == 1


def test_inserted_rows_are_grouped_as_the_others(tmp_path: Path):
    """Their shards have the parts that an append would give them."""
    lk = lake.open(tmp_path, progress=False)
    rows = [row | {"image": row["image"] * 10} for row in birds(30)]
    lk.commit("birds", table(rows[:20]), shard_bytes="64KiB")

    lk.update_rows("birds", table(rows), insert=True)

    assert read(lk) == rows
    assert {tuple(part.fields for part in shard.parts) for shard in shards(lk)} == {
        (("key", "x", "label"), ("image",))
    }


# --- add_columns --------------------------------------------------------------------------------


@settings(max_examples=30 if FULL else 8, deadline=None)
@given(count=st.integers(1, 100), batch_size=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_function_a_join_by_position_and_by_key_give_the_same(count: int, batch_size: int, seed: int):
    """Three ways to add the same columns: the same data, digest for digest."""
    order = np.random.default_rng(seed).permutation(count)
    doubled = [None if row["x"] is None else row["x"] * 2 for row in birds(count)]
    vectors = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    new = pa.table({"y": doubled, "v": pa.FixedShapeTensorArray.from_numpy_ndarray(vectors)})
    keyed = new.append_column("key", pa.array([row["key"] for row in birds(count)])).take(order)
    with tempfile.TemporaryDirectory() as folder:
        lk = lake_of(folder, birds(count))
        for name in ("position", "key", "function"):
            lk.copy("birds", name)

        def double(batch: pa.RecordBatch) -> dict[str, Any]:
            first = int(batch["key"][0].as_py()[1:])
            assert batch.schema.names == ["x", "key"]
            assert batch.num_rows <= batch_size
            return {
                "y": [None if x is None else 2 * x for x in batch["x"].to_pylist()],
                "v": vectors[first : first + batch.num_rows],
            }

        made = [
            lk.add_columns("position", new),
            lk.add_columns("key", keyed),
            lk.add_columns("function", double, columns=["x", "key"], batch_size=batch_size),
        ]

        assert [row["y"] for row in read(lk, "key")] == doubled
        assert [np.asarray(row["v"]).tolist() for row in read(lk, "key")] == vectors.tolist()
        assert len({version.id for version in made}) == 1


def test_adding_an_embedding_to_images_uploads_no_image_byte(tmp_path: Path):
    """New parts lie beside the old ones, which stay; what is written is the size of the new column."""
    rows = [row | {"image": row["image"] * 10} for row in birds(200)]
    lk = lake.open(tmp_path, progress=False)
    lk.commit("birds", table(rows), shard_bytes="64KiB")
    before = shards(lk)
    counting = CountingStore(lk.store)

    def embed(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"emb": np.array([[*image[:8]] for image in batch["image"].to_pylist()], np.float32)}

    made = over(lk, counting).add_columns("birds", embed, columns=["image"])

    after = shards(lk)
    assert [new.parts[:-1] for new in after] == [old.parts for old in before]
    assert {new.parts[-1].fields for new in after} == {("emb",)}
    assert made.bytes_new == sum(new.parts[-1].bytes for new in after)
    assert counting.bytes_written < 150_000 < 200 * 7000
    assert len(written(counting)) == len(before)


def test_keys_that_the_data_lacks_are_null_and_others_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A join by key keeps the dataset's rows; keys that it does not have are counted in the log."""
    lk = lake_of(tmp_path, birds(60))

    lk.add_columns("birds", pa.table({"key": ["k00059", "nobody", "k00000"], "y": [59, -1, 0]}))

    assert [row["y"] for row in read(lk)] == [0, *[None] * 58, 59]
    assert "1 keys of the data are not there, first 'nobody'" in caplog.text
    assert sum("y" in part.fields for shard in shards(lk) for part in shard.parts) == 2


def test_only_rows_that_meet_the_condition_get_values(tmp_path: Path):
    """where= computes what is missing: the nightly run after new rows came, and nothing when none did."""
    lk = lake_of(tmp_path, birds(40))
    seen: list[str] = []

    def length(batch: pa.RecordBatch) -> dict[str, Any]:
        seen.extend(batch["key"].to_pylist())
        return {"n": [int(key[1:]) for key in batch["key"].to_pylist()]}

    lk.add_columns("birds", length, where="label <> 'b'")
    assert [row["n"] for row in read(lk)] == [n if n % 3 != 1 else None for n in range(40)]
    lk.commit("birds", table(birds(7, 40)), mode="append")
    seen.clear()

    lk.add_columns("birds", length, where="n is null", columns=["key"])

    assert seen == [f"k{n:05}" for n in range(47) if n >= 40 or n % 3 == 1]
    assert [row["n"] for row in read(lk)] == list(range(47))
    again = lk.add_columns("birds", length, where="n is null", columns=["key"])
    assert again.seq == len(lk.log("birds")) == 4


def test_data_fills_rows_that_meet_the_condition(tmp_path: Path):
    """By key and by position alike; a column that is there keeps its other values."""
    lk = lake_of(tmp_path, birds(30))
    fill = pa.table({"key": [row["key"] for row in birds(30)], "x": range(100, 130)})
    expected = [100 + n if row["x"] is None else row["x"] for n, row in enumerate(birds(30))]
    lk.copy("birds", "other")

    lk.add_columns("birds", fill, where="x is null")
    lk.add_columns("other", fill.select(["x"]), where="x is null")

    assert [row["x"] for row in read(lk)] == [row["x"] for row in read(lk, "other")] == expected


@pytest.mark.parametrize(
    ("data", "more", "kind", "message"),
    [
        ({"x": [1, 2, 3]}, {}, lake.SchemaError, "has a column 'x' already"),
        ({"y": [1, 2, 3]}, {}, ValueError, "3 rows for the 20 of 'birds'"),
        ({"key": ["a"]}, {}, lake.SchemaError, "no column to add"),
        ({"key": ["a", "a"], "y": [1, 2]}, {}, ValueError, "key 'a' is in the data 2 times"),
        (lambda b: {"x": [1] * b.num_rows}, {}, lake.SchemaError, "has a column 'x' already"),
        (lambda b: {"key": [1] * b.num_rows}, {"where": "true"}, lake.SchemaError, "gave the key column"),
        (lambda b: {"y": [1]}, {}, lake.SchemaError, "gave 1 rows for"),
        (lambda b: {}, {}, lake.SchemaError, "gave 0 rows for"),
        (lambda b: 5, {}, TypeError, "a batch, a table or a mapping of columns, not int"),
        (lambda b: b, {"columns": ["z"]}, ValueError, "no column 'z' in 'birds'"),
        (lambda b: b, {"columns": "x"}, ValueError, "a list of columns"),
        (lambda b: b, {"batch_size": 0}, ValueError, "at least 1"),
        (lambda b: {"y": [1] * b.num_rows}, {"where": "nothing > 1"}, ValueError, "nothing"),
    ],
)
def test_columns_that_cannot_be_added(
    tmp_path: Path, data: Any, more: dict[str, Any], kind: type[Exception], message: str
):
    """Each refusal says why; the head is where it was."""
    lk = lake_of(tmp_path, birds(20))

    with pytest.raises(kind, match=message):
        lk.add_columns("birds", pa.table(data) if isinstance(data, dict) else data, **more)
    assert len(lk.log("birds")) == 1


def test_later_answers_must_fit_the_first(tmp_path: Path):
    """A column that comes, goes or changes its type is named, with the row where that happened."""
    lk = lake_of(tmp_path, birds(40))
    answers: list[tuple[dict[str, Any], str]] = [
        ({"y": 1.5}, "'y'"),
        ({"y": 1, "z": 1}, "'z' is not in the schema"),
        ({"z": 1}, "gave 'y' before"),
    ]
    for later, message in answers:
        count = itertools.count()

        def answer(batch: pa.RecordBatch, later: Any = later, count: Any = count) -> dict[str, Any]:
            given = {"y": 1} if next(count) < 2 else later
            return {name: [value] * batch.num_rows for name, value in given.items()}

        with pytest.raises(lake.SchemaError, match=message) as caught:
            lk.add_columns("birds", answer, batch_size=5)
        assert "from row 10 on" in caught.value.__notes__[0]


def test_a_crash_goes_on_where_it_was(tmp_path: Path):
    """The same call calls the function for the rest only; another function, or the same with other values, does not."""
    lk = lake_of(tmp_path / "lake", birds(200))
    lk = lake.open(tmp_path / "lake", cache_dir=tmp_path / "cache", progress=False)
    state = tmp_path / "calls"

    def make(scale: int) -> Any:
        def compute(batch: pa.RecordBatch) -> dict[str, Any]:
            calls = int(state.read_text()) if state.exists() else 0
            state.write_text(str(calls + 1))
            if calls == 5:
                raise KeyboardInterrupt
            return {"y": pa.array([scale if x else 0 for x in batch["x"].to_pylist()], pa.int32())}

        return compute

    with pytest.raises(KeyboardInterrupt):
        lk.add_columns("birds", make(2))
    count = len(shards(lk))
    assert len(lk.log("birds")) == 1
    assert count > 7
    state.write_text("100")

    again = lake.open(tmp_path / "lake", cache_dir=tmp_path / "cache", progress=False)
    again.add_columns("birds", make(2))

    assert int(state.read_text()) - 100 == count - 5
    assert [row["y"] for row in read(lk)] == [2 if row["x"] else 0 for row in birds(200)]
    assert not [*(tmp_path / "cache" / "unfinished").glob("*/*")]
    lk.drop_columns("birds", ["y"])
    state.write_text("5")
    with pytest.raises(KeyboardInterrupt):
        lk.add_columns("birds", make(3))
    lk.drop_columns("birds", ["label"])
    state.write_text("200")
    lk.add_columns("birds", make(3))
    assert int(state.read_text()) - 200 == len(shards(lk))
    assert read(lk) == [
        {"key": r["key"], "x": r["x"], "image": r["image"], "y": 3 if r["x"] else 0} for r in birds(200)
    ]


def test_dictionary_values_of_finished_shards_are_kept(tmp_path: Path):
    """A run that goes on knows the values that the crashed one met, though no new shard has them."""
    lk = lake_of(tmp_path / "lake", birds(200))
    lk = lake.open(tmp_path / "lake", cache_dir=tmp_path / "cache", progress=False)
    fail = tmp_path / "fail"
    fail.touch()

    def kind(batch: pa.RecordBatch) -> dict[str, Any]:
        first = batch["key"][0].as_py()
        if first > "k00100" and fail.exists():
            raise RuntimeError("power")
        value = "early" if first < "k00100" else "late"
        return {"kind": pa.array([value] * batch.num_rows).dictionary_encode()}

    with pytest.raises(RuntimeError, match="power"):
        lk.add_columns("birds", kind, batch_size=7)
    fail.unlink()
    lk.add_columns("birds", kind, batch_size=7)

    assert sorted(lk.dataset("birds").vocab("kind")) == ["early", "late"]
    assert {row["kind"] for row in read(lk)} == {"early", "late"}


def test_columns_are_carried_over_rows_that_others_append_meanwhile(tmp_path: Path):
    """Those rows keep null."""
    lk = lake_of(tmp_path, birds(40))
    rival = lake.open(tmp_path, progress=False)
    act = lambda: rival.commit("birds", table(birds(9, 40)), mode="append")  # noqa: E731

    over(lk, Meanwhile(lk.store, act)).add_columns("birds", pa.table({"y": range(40)}))

    assert [row["y"] for row in read(lk)] == [*range(40), *[None] * 9]
    assert [row["key"] for row in read(lk)] == [row["key"] for row in birds(49)]


def test_an_update_is_carried_over_rows_that_others_append_meanwhile(tmp_path: Path):
    """Their new dictionary values keep their codes."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"key": ["a", "b"], "label": pa.array(["x", "y"]).dictionary_encode()}))
    rival = lake.open(tmp_path, progress=False)
    act = lambda: rival.commit("n", pa.table({"key": ["c"], "label": ["z"]}), mode="append")  # noqa: E731

    over(lk, Meanwhile(lk.store, act)).update_rows("n", pa.table({"key": ["a"], "label": ["w"]}))

    assert [row["label"] for row in read(lk, "n")] == ["w", "y", "z"]
    assert lk.dataset("n").vocab("label") == ["x", "y", "z", "w"]


def test_a_column_that_another_adds_meanwhile_is_a_conflict(tmp_path: Path):
    """Two types under one name cannot both be true."""
    lk = lake_of(tmp_path, birds(40))
    rival = lake.open(tmp_path, progress=False)
    more = table(birds(9, 40)).append_column("y", pa.array(["text"] * 9))
    mine = over(lk, Meanwhile(lk.store, lambda: rival.commit("birds", more, mode="append")))

    with pytest.raises(lake.ConflictError, match="a column 'y' was added meanwhile"):
        mine.add_columns("birds", pa.table({"y": range(40)}))
    assert [row["y"] for row in read(lk)] == [*[None] * 40, *["text"] * 9]


def test_all_of_it_works_on_a_bucket(s3_url: str, tmp_path: Path):
    """Update, add by key and by function, delete, drop and compact, through the cache."""
    lk = lake.open(s3_url, cache_dir=tmp_path, progress=False)
    lk.commit("birds", table(birds(120)), shard_bytes=SHARD)
    lk.update_rows("birds", changes([birds(1)[0] | {"label": "z"}], "label"))
    lk.add_columns("birds", pa.table({"key": ["k00001"], "y": [1]}))
    lk.add_columns(
        "birds", lambda batch: {"n": [len(i) for i in batch["image"].to_pylist()]}, columns=["image"]
    )
    lk.delete_rows("birds", "x is null")
    lk.drop_columns("birds", ["image"])
    lk.compact("birds")

    expected = [
        {
            "key": row["key"],
            "x": n,
            "label": "z" if n == 0 else row["label"],
            "y": 1 if n == 1 else None,
            "n": 700,
        }
        for n, row in enumerate(birds(120))
        if row["x"] is not None
    ]
    assert read(lk) == expected
