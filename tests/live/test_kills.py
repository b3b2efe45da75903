"""A watcher that is killed again and again loses no file and commits none twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import lake
from lake import filenames
from tests.live.dropping import content, name_of

ROOT = Path(__file__).parents[2]
FULL = bool(os.environ.get("LAKE_TEST_FULL"))
WATCH = """
import sys, lake.live
print("imported", flush=True)
lake.live.ingest(sys.argv[1], sys.argv[2], "cam", every="0.2s", settle="0.3s", delete=sys.argv[3] == "True")
"""


@pytest.mark.parametrize("delete", [False, True] if FULL else [True])
def test_every_file_is_in_exactly_one_committed_batch(tmp_path, delete):
    """Four writers drop files in every way, some over earlier ones, while the watcher is killed with -9 at random."""
    files, kills, pace = (5000, 20, 0.012) if FULL else (120, 2, 0.05)
    folder, url = tmp_path / "camera", tmp_path / "l"
    folder.mkdir()
    draw = random.Random(7)
    writers = [writer(folder, n, files // 4, pace) for n in range(4)]
    watch = ["-c", WATCH, folder, url, delete]
    for _ in range(kills):
        watcher = started(*watch, stdout=subprocess.PIPE)
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "imported\n"
        time.sleep(0.3 + draw.random() * (4 if FULL else 2))
        watcher.kill()
        watcher.stdout.close()
        assert watcher.wait() == -signal.SIGKILL
    contents = written(writers)
    last = {names[-1] for names in contents.values()}
    watcher = started(*watch)
    until(lambda: (folder / ".lake-live" / "watcher").read_text() == f"{watcher.pid}\n")
    until(lambda: last <= {name_of(cell) for cell in cells(rows(url)).values()}, pause=1)
    until(lambda: not delete or not files_in(folder))
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait(timeout=60) == 0

    found = cells(rows(url))
    for data in found.values():
        assert data == content(name_of(data)), "a file was committed before it was whole"
    committed = Counter(map(name_of, found.values()))
    assert committed.most_common(1)[0][1] == 1, "a content was committed twice"
    assert last <= committed.keys(), "a file was lost"
    of_path = {name: path for path, names in contents.items() for name in names}
    assert committed.keys() <= of_path.keys()
    for (_, key, field), data in found.items():
        assert (key, field) == filenames.split(of_path[name_of(data)])
    batches = [entry.txn for entry in lake.open(url).log("cam") if entry.operation == "append"]
    assert len(set(batches)) == len(batches)
    assert len(files_in(folder)) == (0 if delete else len(contents))
    said = f"{len(contents)} files, {len(of_path)} contents, {len(committed)} committed in {len(batches)} batches"
    sys.stdout.write(f"{said}, after {kills} kills\n")


def started(*arguments: object, **more) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=environment, text=True, **more)


def writer(folder: Path, number: int, count: int, pace: float) -> tuple[subprocess.Popen[str], Path]:
    """A process that drops files, and where it says which."""
    names = folder.parent / f"written {number}"
    with names.open("w") as file:
        script = Path(__file__).parent / "dropping.py"
        return started(script, folder, number, count, pace, stdout=file), names


def written(writers: list[tuple[subprocess.Popen[str], Path]]) -> dict[str, list[str]]:
    """The names of the contents of each path, in order, once all are written."""
    found: dict[str, list[str]] = {}
    for process, names in writers:
        assert process.wait(timeout=280) == 0
        for line in names.read_text().splitlines():
            path, name = json.loads(line)
            found.setdefault(path, []).append(name)
    return found


def until(true: Callable[[], object], pause: float = 0.1) -> None:
    """Wait for something, for up to two minutes."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(pause)


def files_in(folder: Path) -> set[Path]:
    """What lies in the folder, but for the journal."""
    return {path for path in folder.rglob("*") if path.is_file() and ".lake-live" not in path.parts}


def rows(url: Path) -> list[dict]:
    try:
        return lake.open(url).dataset("cam").scan().to_table().to_pylist()
    except lake.NotFoundError:
        return []


def cells(table: list[dict]) -> dict[tuple[int, str, str], bytes]:
    """Every file's bytes, by row, key and field."""
    return {
        (number, row["key"], field): data
        for number, row in enumerate(table)
        for field, data in row.items()
        if field != "key" and data is not None
    }
