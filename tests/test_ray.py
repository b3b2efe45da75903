"""Ray: what tasks read and write is what one process would, whatever fails, is killed, or runs twice.

One Ray of two workers for all of it, in this file alone: starting one takes longer than most tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lake
from lake.commit import Signature
from lake.errors import ConflictError, SchemaError, StoreError
from lake.joint import Joint
from lake.repo import Lake
from lake.stores import LocalStore
from lake.stores.wrappers import _Around
from lake.write import request

ray = pytest.importorskip("ray")

ROOT = Path(__file__).parents[1]
FULL = bool(os.environ.get("LAKE_TEST_FULL"))
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signals here"),
]

_T = TypeVar("_T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray of two workers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        import lake.ray

        yield lake.ray
        ray.shutdown()


@pytest.fixture
def lk(tmp_path: Path) -> Lake:
    return lake.open(tmp_path / "lake", cache_dir=tmp_path / "cache", progress=False)


class Failing(_Around):
    """A store in which tasks fail once for some parts: before a part is stored, after it, or by being killed then."""

    def __init__(self, store: LocalStore, notes: Path, *, one_in: int, kill_one_in: int) -> None:
        super().__init__(store)
        self.notes, self.one_in, self.kill_one_in = notes, one_in, kill_one_in

    def __reduce__(self) -> tuple[Any, ...]:
        return _failing, (self.store, self.notes, self.one_in, self.kill_one_in)

    def _do(self, verb: str, key: str, call: Callable[[], _T]) -> _T:
        if verb != "publish":
            return call()
        number, late = int(key[-12:-6], 16), bool(int(key[-13:-12], 16) % 2)
        if late:
            result = call()
            self._fail(number)
            return result
        self._fail(number)
        return call()

    def _fail(self, number: int) -> None:
        note = self.notes / str(number)
        if number % self.one_in or note.exists():
            return
        note.touch()
        if number % self.kill_one_in == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        raise StoreError("the network went away", retryable=False)


def _failing(store: LocalStore, notes: Path, one_in: int, kill_one_in: int) -> Failing:
    return Failing(store, notes, one_in=one_in, kill_one_in=kill_one_in)


def numbers(rows: int, blocks: int) -> Any:
    """Rows 0 to `rows` in so many blocks, with values that are no order of their own."""

    def more(batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["id"]
        return {"id": ids, "x": (ids * 2654435761) % 1000003, "label": np.where(ids % 3 == 0, "a", "b")}

    return ray.data.range(rows, override_num_blocks=blocks).map_batches(more)


def test_tasks_that_fail_are_killed_and_run_twice_give_each_row_once(
    cluster: Any, lk: Lake, tmp_path: Path
) -> None:
    """200 tasks, of which many fail once before or after their part is stored, some by being killed: one version."""
    rows, notes = 20_000, tmp_path / "notes"
    notes.mkdir()
    shaky = Lake(
        Failing(LocalStore(tmp_path / "lake"), notes, one_in=10, kill_one_in=50),
        lk.settings,
        progress=False,
    )

    made = cluster.write(
        numbers(rows, 200),
        shaky,
        "numbers",
        mode="overwrite",
        key="id",
        txn="night 1",
        max_retries=20,
        retry_exceptions=True,
    )

    failed = [int(note.name) for note in notes.iterdir()]
    assert len(failed) > 10
    assert any(number % 50 == 0 for number in failed)
    assert (made.seq, made.rows, made.shards) == (1, rows, 200)
    assert lk.dataset("numbers").scan(["id"]).to_table()["id"].to_pylist() == list(range(rows))
    assert [entry.operation for entry in lk.log("numbers")] == ["overwrite"]
    assert lk.verify("full").ok


def test_a_task_that_runs_twice_counts_once(lk: Lake) -> None:
    """What both gave back is the same; and rows that do not add up make no version."""
    asked = _request("twice")
    joint = Joint(lk.refs, asked)
    table = pa.table({"id": range(1000)})

    first = joint.task.run(0, table[:600])
    again, second = joint.task.run(0, table[:600]), joint.task.run(1, table[600:])

    assert again.shards == first.shards
    assert again.bytes_new == 0
    with pytest.raises(SchemaError, match="1,600 rows went in, and 1,000 came back"):
        joint.land([first, again, second], 1600)
    with pytest.raises(SchemaError, match="1,000 rows went in, and 600 came back"):
        joint.land([first], 1000)
    assert lk.datasets() == []
    joint.land([second, again, first], 1000)
    assert lk.dataset("twice").scan().to_table()["id"].to_pylist() == list(range(1000))


def test_a_part_that_vanished_makes_no_version(lk: Lake) -> None:
    """The log entry is made only when every part is there."""
    joint = Joint(lk.refs, _request("gone"))
    share = joint.task.run(0, pa.table({"id": range(100)}))
    lk.store.delete([found.key for found in lk.store.list("shards/")])

    with pytest.raises(ConflictError, match=r"was collected.*Repeating the commit writes it again"):
        joint.land([share], 100)
    assert lk.datasets() == []


def test_tasks_agree_on_types_and_vocabularies(lk: Lake) -> None:
    """Null columns take the others' type; values of a category column come together; a conflict names the task."""
    joint = Joint(lk.refs, _request("types"))
    a = pa.table({"key": ["a"], "n": pa.nulls(1), "c": pa.array(["owl"]).dictionary_encode()})
    b = pa.table({"key": ["b"], "n": [1], "c": pa.array(["tit", "owl"]).dictionary_encode()[1:]})

    joint.land([joint.task.run(1, b), joint.task.run(0, a)], 2)

    dataset = lk.dataset("types")
    assert dataset.scan().to_table().to_pylist() == [
        {"key": "a", "n": None, "c": "owl"},
        {"key": "b", "n": 1, "c": "owl"},
    ]
    assert sorted(dataset.vocab("c")) == ["owl", "tit"]
    assert dataset.key == "key"
    joint = Joint(lk.refs, _request("types"))
    shares = [joint.task.run(0, pa.table({"n": [1]})), joint.task.run(1, pa.table({"n": ["x"]}))]
    with pytest.raises(SchemaError, match="n"):
        joint.land(shares, 2)


def _request(name: str) -> Any:
    return request(
        name,
        mode="overwrite",
        key=...,
        meta=None,
        recipe=None,
        signature=Signature.of(None, None),
        expect=...,
        shard_bytes="1MiB",
        may_be_empty=False,
    )


_DRIVER = """
import os, signal, sys
import ray
ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)
import lake, lake.joint, lake.ray
def killed(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
lake.joint.land = killed
lk = lake.open(sys.argv[2], progress=False)
lake.ray.write(ray.data.range(1000, override_num_blocks=4), lk, "night", mode="append", key="id", txn="night 7")
"""


def test_a_job_whose_driver_died_may_be_run_again(cluster: Any, lk: Lake, tmp_path: Path) -> None:
    """Killed before the log entry, all tasks being done: nothing is visible. Again, and again: one version."""
    address = ray.get_runtime_context().gcs_address
    died = subprocess.run(
        [sys.executable, "-c", _DRIVER, address, str(tmp_path / "lake")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert lk.datasets() == []
    stored = {found.key for found in lk.store.list("shards/")}
    assert stored

    data = ray.data.range(1000, override_num_blocks=4)
    made = cluster.write(data, lk, "night", mode="append", key="id", txn="night 7")
    again = cluster.write(data, lk, "night", mode="append", key="id", txn="night 7")

    assert made == again
    assert (made.seq, made.rows, made.bytes_new) == (1, 1000, 0)
    assert {found.key for found in lk.store.list("shards/")} == stored


@pytest.mark.slow
def test_rows_come_by_key_on_request(cluster: Any, lk: Lake) -> None:
    """Whatever order the blocks have."""
    tables = [pa.table({"key": [f"k{n * 37 % 100:02}" for n in range(a, a + 50)]}) for a in (50, 0)]

    cluster.write(ray.data.from_arrow(tables), lk, "sorted", order="key")

    keys = lk.dataset("sorted").scan().to_table()["key"].to_pylist()
    assert keys == [f"k{n:02}" for n in range(100)]
    with pytest.raises(ValueError, match="key=None says that there is none"):
        cluster.write(ray.data.from_arrow(tables), lk, "sorted", order="key", key=None)


def test_engines_agree_on_a_large_dataset(cluster: Any, lk: Lake) -> None:
    """The same sums, counts and extremes from SQL, polars, a scan, pandas and Ray; two million rows in full."""
    rows = 2_000_000 if FULL else 400_000
    random = np.random.default_rng(0)
    table = pa.table(
        {
            "id": np.arange(rows),
            "x": pa.array(random.integers(-1000, 1000, rows), mask=random.random(rows) < 0.01),
            "label": pa.array([f"l{n}" for n in random.integers(0, 5, rows)]).dictionary_encode(),
        }
    )
    lk.commit("large", table, key=None, shard_bytes="1MiB")
    dataset, low, high = lk.dataset("large"), rows // 3, rows // 2
    where = f"id >= {low} and id < {high}"

    frame = dataset.scan().to_pandas()
    chosen = frame[(frame["id"] >= low) & (frame["id"] < high)].groupby("label", observed=True)["x"]
    answers = {
        "pandas": {
            k: (int(v["sum"]), int(v["count"]), int(v["max"]))
            for k, v in chosen.agg(["sum", "count", "max"]).iterrows()
        },
        "sql": {
            k: (int(s), c, m)
            for k, s, c, m in lk.sql(
                f"select label, sum(x), count(x), max(x) from large where {where} group by label"
            ).fetchall()
        },
        "polars": {
            row["label"]: (row["s"], row["c"], row["m"])
            for row in dataset.lazy()
            .filter((pl.col("id") >= low) & (pl.col("id") < high))
            .group_by("label")
            .agg(s=pl.col("x").sum(), c=pl.col("x").count(), m=pl.col("x").max())
            .collect()
            .to_dicts()
        },
        "scan": {
            row["label"]: (row["x_sum"], row["x_count"], row["x_max"])
            for row in dataset.scan(["x", "label"], where)
            .to_table()
            .group_by("label")
            .aggregate([("x", "sum"), ("x", "count"), ("x", "max")])
            .to_pylist()
        },
    }
    read = cluster.read(dataset, columns=["x", "label"], where=where)
    parts = read.map_batches(
        lambda batch: (
            batch.set_column(1, "label", pc.cast(batch["label"], pa.string()))
            .group_by("label")
            .aggregate([("x", "sum"), ("x", "count"), ("x", "max")])
        ),
        batch_format="pyarrow",
        batch_size=None,
    ).to_arrow_refs()
    merged = pa.concat_tables([ray.get(ref) for ref in parts]).group_by("label")
    total = merged.aggregate([("x_sum", "sum"), ("x_count", "sum"), ("x_max", "max")])
    answers["ray"] = {
        row["label"]: (row["x_sum_sum"], row["x_count_sum"], row["x_max_max"]) for row in total.to_pylist()
    }

    assert len(answers["pandas"]) == 5
    assert all(answer == answers["pandas"] for answer in answers.values()), answers


def test_reading_is_by_shard_and_keeps_order(cluster: Any, lk: Lake) -> None:
    """Runs of shards, only those that a condition leaves, only the columns that are used; schema known before."""
    table = pa.table({"id": np.arange(50_000), "x": np.arange(50_000) % 7, "y": [1.5] * 50_000})
    lk.commit("t", table, key=None, shard_bytes="64KiB")
    dataset = lk.dataset("t")

    whole = cluster.read(dataset, parallelism=6)
    whole.context.execution_options.preserve_order = True  # else Ray hands on what is ready first
    source = cluster.Shards(dataset.snapshot, dataset.schema.names, "id < 5000 and x = 3")
    tasks = source.get_read_tasks(4)

    assert whole.schema().base_schema.equals(dataset.schema)
    assert pa.concat_tables([ray.get(ref) for ref in whole.to_arrow_refs()])["id"].to_pylist() == list(
        range(50_000)
    )
    read = pa.concat_tables([block for task in tasks for block in task()])
    assert read.equals(table.filter((pc.field("id") < 5000) & (pc.field("x") == 3)))
    shards = len(dataset.snapshot.manifest)
    assert len(source._pieces) <= -(-shards // 8)
    assert [len(each.get_read_tasks(1000)) for each in [cluster.Shards(dataset.snapshot, ["x"], None)]] == [
        shards
    ]
    with pytest.raises(ValueError, match="no column 'z' in 't'"):
        cluster.read(dataset, columns=["z"])
    with pytest.raises(TypeError, match="columns are a list of names"):
        cluster.read(dataset, columns="id")
    with pytest.raises(TypeError, match="parallelism is a whole number, not '6'"):
        cluster.read(dataset, parallelism="6")
    with pytest.raises(ValueError, match="tasks is 1 or more: 0"):
        cluster.derive(lk, "derived", dataset.samples(), tasks=0)


def test_derive_is_the_one_process_s_derive(cluster: Any, lk: Lake) -> None:
    """The same rows in the same order, found again by the same fingerprint; uncountable pipelines too."""
    lk.commit("t", pa.table({"key": [f"k{n:04}" for n in range(900)], "x": range(900)}))

    def half(item: Any) -> Any:
        return item[0], {"y": item[1]["x"] / 2}

    countable = lk.dataset("t").samples().map(half)
    uncountable = lk.dataset("t").samples().filter(lambda item: item[1]["x"] % 3 == 0).map(half)

    made = cluster.derive(lk, "halves", countable, tasks=7)

    assert made.scan().to_table()["y"].to_pylist() == [n / 2 for n in range(900)]
    assert lk.derive("halves", countable).version == made.version
    assert cluster.derive(lk, "halves", countable).version == made.version
    assert len(lk.log("halves")) == 1
    few = cluster.derive(lk, "few", uncountable)
    assert few.scan().to_table()["y"].to_pylist() == [n / 2 for n in range(0, 900, 3)]
