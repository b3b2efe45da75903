"""What ingest costs: memory does not grow with the data, and the input is read once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lake

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
MEGABYTES = 3000 if FULL else 600

PROGRAM = """
import re, sys
import numpy as np, pyarrow as pa
import lake

rows, batches, reads = 4096, int(sys.argv[2]) // 4, 0

def stream():
    global reads
    reads += 1
    for number in range(batches):
        rng = np.random.default_rng(number)
        values = pa.array(rng.standard_normal(rows * 256, dtype=np.float32))
        keys = pa.array([f"{number:06d}-{row:05d}" for row in range(rows)])
        yield pa.record_batch({"key": keys, "x": pa.FixedSizeListArray.from_arrays(values, 256)})

first = next(stream())
reads = 0
lk = lake.open(sys.argv[1], progress=False)
made = lk.commit("big", pa.RecordBatchReader.from_batches(first.schema, stream()))
assert made.rows == rows * batches and reads == 1
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])  # unlike ru_maxrss not the parent's
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident memory as Linux reports it")
def test_memory_stays_under_a_gigabyte_at_the_default_shard_size(tmp_path: Path) -> None:
    """A stream of any length is committed within 1 GB, the interpreter and its libraries included."""
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake"), str(MEGABYTES)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) * 1024 < 1_000_000_000


def test_an_append_names_the_row_and_key_that_does_not_fit(tmp_path: Path) -> None:
    """Counted over all batches; the head stays where it was."""
    lk = lake.open(tmp_path / "lake", progress=False)
    before = lk.commit("t", pa.table({"key": ["a"], "n": pa.array([1], pa.int8())}))
    batches = [pa.record_batch({"key": [f"k{n}", f"k{n + 1}"], "n": [n, n + 1]}) for n in range(126, 132, 2)]

    with pytest.raises(
        lake.SchemaError, match=r"column 'n', row 2, key 'k128': 128 \(int64\) does not fit int8"
    ):
        lk.commit("t", pa.Table.from_batches(batches), mode="append")
    assert lk.dataset("t").version == before.id
