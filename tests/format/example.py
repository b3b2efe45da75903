"""The worked example of docs/format.md: recomputed here, so that the page cannot say anything else.

`python -m tests.format.example` writes it anew into the page.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.format import cuts
from lake.format.content import value_digest
from lake.format.schema import canonical_type, conform, stored_schema
from tests.format.handmade import write_lake, write_version

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
PYARROW = "26.0.1"  # whose Parquet writer made the segment: its digest, and so the version's id, hang on that
DEPENDENT = ("keys", "entry", "version")  # what shows one of these

TABLE = pa.table(
    {
        "key": ["robin", "wren", "owl"],
        "label": pa.array(["song", "song", "prey"]).dictionary_encode(),
        "grams": pa.array([18, 9, None], pa.int32()),
    }
)


def blocks() -> dict[str, str]:
    """The text of each part of the example, by its name in the page."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_lake(root)
        write_version(root, "birds", TABLE, key="key", target=2**26, meta={"license": "CC0"})
        files = {
            path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
        }
    found = {key.split("/")[0] + Path(key).suffix: data for key, data in files.items()}
    entry = next(data for key, data in files.items() if "/log/" in key)
    version = json.loads(next(data for key, data in files.items() if "/versions/" in key))
    (row,) = pq.read_table(pa.BufferReader(found["manifests.parquet"])).to_pylist()
    return {
        "rows": "\n".join(
            f"{name:5} ({TABLE.schema.field(name).type}): {TABLE[name].to_pylist()}"
            for name in TABLE.column_names
        ),
        "keys": "\n".join(f"{len(data):5} {key}" for key, data in sorted(files.items())),
        "entry": entry.decode(),
        "version": json.dumps(version, indent=1, ensure_ascii=False, sort_keys=True),
        "segment": json.dumps(_hexed(row), indent=1),
        "part": _dump(found["shards.arrow"]),
        "digests": _digests(row),
        "chain": _chain(row, version),
        "hashes": _hashes(),
    }


def _hexed(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _hexed(item) for key, item in value.items()}
    return [_hexed(item) for item in value] if isinstance(value, list) else value


def _dump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        piece = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:04x}  {piece.hex(' ', 2):39}  {text}")
    return "\n".join(lines)


class _Recorder:
    """A hash that remembers what it hashed."""

    def __init__(self) -> None:
        self.data = b""

    def update(self, data: Any) -> None:
        self.data += bytes(data)

    def digest(self) -> bytes:
        return hashlib.sha256(self.data).digest()


def _rows() -> pa.RecordBatch:
    return conform(TABLE.combine_chunks().to_batches()[0], stored_schema(TABLE.schema))


def _digests(row: dict[str, Any]) -> str:
    lines, whole = [], b""
    for field, column in zip(_rows().schema, _rows().columns, strict=True):
        recorder = _Recorder()
        digest = value_digest([column], lambda recorder=recorder: recorder)
        lines += [f"{field.name}:", f"  stream {recorder.data.hex()}", f"  digest {digest.hex()}"]
        for piece in (field.name.encode(), canonical_type(field).encode(), digest):
            whole += len(piece).to_bytes(8, "little") + piece
    assert hashlib.sha256(whole).digest() == row["parts"][0]["content"]
    return "\n".join([*lines, f"hashed  {whole.hex()}", f"content {row['parts'][0]['content'].hex()}"])


def _chain(row: dict[str, Any], version: dict[str, Any]) -> str:
    parts = [[part["fields"], part["content"].hex()] for part in row["parts"]]
    shard = _compact([row["rows"], parts])
    chain = hashlib.sha256(bytes(32) + hashlib.sha256(shard.encode()).digest()).hexdigest()
    text = _compact(
        {"schema": {"fields": version["fields"], "metadata": {}}}
        | {name: version[name] for name in ("key", "vocab", "meta", "recipe", "chain")}
    )
    assert (chain, hashlib.sha256(text.encode()).hexdigest()) == (version["chain"], version["data"])
    return f"{shard}\n{chain}\n{text}"


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hashes() -> str:
    rows = _rows()
    hashes, bits = cuts.row_hashes(rows, "key", 0).tolist(), cuts.row_bits(rows).tolist()
    return "\n".join(
        f"{key:5} {value:016x} ({value}), {size} bits"
        for key, value, size in zip(rows["key"].to_pylist(), hashes, bits, strict=True)
    )


def shown(page: str) -> dict[str, str]:
    """The parts of the example as a page has them."""
    return dict(re.findall(r"<!-- example: (\w+) -->\n```text\n(.*?)\n```\n", page, re.DOTALL))


def written(page: str) -> str:
    """The page with the example as it is now."""
    for name, text in blocks().items():
        mark = f"<!-- example: {name} -->\n"
        page = re.sub(
            rf"{mark}(```text\n.*?\n```\n)?",
            lambda _, mark=mark, text=text: f"{mark}```text\n{text}\n```\n",
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
