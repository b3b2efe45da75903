"""The command `demo`: the first ten minutes with lake, in half a one. Reads as an example of the API."""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

import lake
from lake.cli.app import Failed, Json, answers, command
from lake.cli.output import plain_text, print_columns, print_json
from lake.config import format_bytes

EPOCHS = 20
WRONG = range(600, 610)  # labels that the first commit gets wrong


@command("demo", "lake demo", "lake demo --keep ./demo-lake")
def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Make the lake in this folder and leave it there."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Commit 1,797 handwritten digits, query them, train on them, correct ten: half a minute."""
    with _folder(keep) as folder, redirect_stdout(sys.stderr if as_json else sys.stdout):
        result = run(folder)
    if as_json:
        print_json(result)
    elif keep:
        print(f"\nThe lake stays in {keep}. Try: lake log digits --url {keep}")


def run(folder: Path) -> dict[str, Any]:
    """Each step of the demo, explained; what came out of it."""
    lk = lake.open(folder)
    images, pixels, labels = handwritten_digits()

    print(f"1. Commit: {len(labels):,} images, with their labels and pixels, become version 1 of a dataset.")
    mistaken = [(label + 1) % 10 if row in WRONG else label for row, label in enumerate(labels)]
    first = lk.commit("digits", table(images, pixels, mistaken), message="as they came", shard_bytes="32KiB")
    print(f"   {first.rows:,} rows in {first.shards} shards, {format_bytes(first.bytes)}: {first.id[:12]}")

    print("\n2. SQL over the manifest: it knows each shard's rows, bytes and keys, and reads none of them.")
    _show(
        lk,
        "select shard, rows, bytes, first_key, last_key from lake.shards "
        "where dataset = 'digits' order by shard limit 4",
    )

    print("\n3. SQL over the rows: the dataset is a table; only the columns that are asked for are read.")
    _show(
        lk,
        "select label, count(*) as images, round(avg(octet_length(image))) as png_bytes "
        "from digits group by label order by label limit 4",
    )

    print("\n4. Training: rows stream into tensors, in a new order each epoch; every tenth is held out.")
    accuracy, seconds = train(lk.dataset("digits"))
    print(f"   {EPOCHS} epochs in {seconds:.1f} s; {accuracy:.1%} right on digits that it never saw.")

    print("\n5. Correction: ten labels were off by one. Only the shards that they are in are stored anew.")
    corrected = table(images, pixels, labels).select(["key", "label"])[WRONG.start : WRONG.stop]
    second = lk.update_rows("digits", corrected, message="ten labels corrected")
    new, reused = format_bytes(second.bytes_new), format_bytes(second.bytes_reused)
    print(f"   {new} new, {reused} reused: {second.id[:12]}")

    print("\n6. History: both versions stay, and a query may look at the two together.")
    _show(
        lk,
        f'select key, old.label as was, new.label as "is" from "digits@#{first.seq}" old '
        "join digits new using (key) where old.label <> new.label order by key limit 3",
    )
    return {
        "rows": first.rows,
        "shards": first.shards,
        "accuracy": accuracy,
        "bytes_new": second.bytes_new,
        "bytes_reused": second.bytes_reused,
    }


def handwritten_digits() -> tuple[list[bytes], Any, list[int]]:
    """The UCI handwritten digits, which come with scikit-learn: PNG files, pixels in [0, 1] and labels."""
    try:
        from PIL import Image
        from sklearn.datasets import load_digits
    except ImportError as missing:
        raise Failed(f"the demo needs {missing.name}: pip install 'lakeshard[demo]'") from missing
    digits = load_digits()

    def png(pixels: Any) -> bytes:
        file = io.BytesIO()
        Image.fromarray((pixels * (255 / 16)).astype("uint8")).save(file, "PNG")
        return file.getvalue()

    pixels = digits.images.astype("float32", order="C") / 16
    return [png(image) for image in digits.images], pixels, digits.target.tolist()


def table(images: list[bytes], pixels: Any, labels: list[int]) -> Any:
    """Samples as an Arrow table: a key, a label, the file, and the pixels as a tensor of fixed shape."""
    import pyarrow as pa

    return pa.table(
        {
            "key": [f"digit-{row:04}" for row in range(len(labels))],
            "label": labels,
            "image": images,
            "pixels": pa.FixedShapeTensorArray.from_numpy_ndarray(pixels),
        }
    )


def train(digits: Any) -> tuple[float, float]:
    """A small network's accuracy on the rows held out, and the seconds that its training took."""
    try:
        import torch
    except ImportError as missing:
        raise Failed("the demo needs torch: pip install 'lakeshard[demo]'") from missing
    torch.manual_seed(0)
    training, held_out = digits.split(0.9, 0.1, by="key", seed=0)
    columns = ["pixels", "label"]
    batches = digits.scan(columns, training, batch_size=64, shuffle=True, seed=0).to_torch()

    nn = torch.nn
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8)),  # one channel
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 3 * 3, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    started = time.perf_counter()
    for _ in range(EPOCHS):  # each pass is the next epoch, in an order of its own
        for batch in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch["pixels"]), batch["label"]).backward()
            optimizer.step()
    seconds = time.perf_counter() - started

    model.eval()
    right = rows = 0
    with torch.no_grad():
        for batch in digits.scan(columns, held_out, batch_size=64).to_torch():
            right += int((model(batch["pixels"]).argmax(1) == batch["label"]).sum())
            rows += len(batch["label"])
    return right / rows, seconds


def _show(lk: lake.Lake, query: str) -> None:
    """The query's answer as a table."""
    with answers():
        answer = lk.sql(query).to_arrow_table()
    columns = [column.to_pylist() for column in answer.columns]
    print_columns(answer.column_names, columns, [plain_text] * len(columns))


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where the lake is made: `keep`, or a folder that is gone afterwards."""
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="lake-demo-") as folder:
        yield Path(folder)
