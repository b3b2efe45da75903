"""Members of archives, read in place, beside the libraries that a program would use otherwise.

- zip: D1, deflated as `zip` does it, its members in random order by two threads; beside one `zipfile.ZipFile`;
- tar.zst: D1, and D4 in files of about 8 KB, its members one after the other, once from a file of one frame,
  once from what `lake archive recompress` makes of it; beside `zstandard` decompressing the same file, and
  handing out nothing.
"""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zstandard

import lake
from benchmarks import data
from benchmarks.report import (
    PATIENCE,
    Bar,
    interleave,
    median_and_spread,
    plus_minus,
    ratio,
    seconds,
    table,
    versions,
    workspace,
)
from lake.archives import recompress

Figures = dict[str, Any]
Members = list[tuple[str, bytes]]
_THREADS = 2


def images(scale: int) -> Members:
    """D1 as files of ten folders."""
    rows = (
        (key, image)
        for batch in data.d1(scale)
        for key, image in zip(batch["key"].to_pylist(), batch["image"].to_pylist(), strict=True)
    )
    return [(f"{int(key) % 10}/{key}.jpg", image) for key, image in rows]


def texts(scale: int) -> Members:
    """D4, 50 texts a file."""
    found: Members = []
    for batch in data.d4(scale):
        lines = batch["text"].to_pylist()
        found += [
            (f"{len(found) + i // 50:08d}.txt", "\n".join(lines[i : i + 50]).encode())
            for i in range(0, len(lines), 50)
        ]
    return found


def write_zip(path: Path, members: Members) -> Path:
    """All of them, deflated."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def write_tars(folder: Path, name: str, members: Members) -> dict[str, Path]:
    """All of them as a tar in one frame, and in many."""
    plain = folder / f"{name}.tar"
    with tarfile.open(plain, "w") as tar:
        for each, content in members:
            info = tarfile.TarInfo(each)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    one, many = folder / f"{name}.one.tar.zst", folder / f"{name}.many.tar.zst"
    with plain.open("rb") as source, one.open("wb") as target:
        zstandard.ZstdCompressor(write_checksum=True).copy_stream(source, target)
    recompress(plain, many).close()
    plain.unlink()
    return {"one frame": one, "small frames": many}


def shuffled(read: Callable[[int], bytes], count: int) -> int:
    """Bytes of all members, read in random order by two threads."""
    order = random.Random(0).sample(range(count), count)
    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(
            pool.map(
                lambda part: sum(len(read(i)) for i in part), [order[i::_THREADS] for i in range(_THREADS)]
            )
        )


def decompressed(path: Path) -> int:
    """Bytes that zstandard makes of the file."""
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return sum(map(len, iter(lambda: reader.read(1 << 20), b"")))


def compare(
    theirs: Callable[[], int], ours: Callable[[], int], expected: int, rounds: int, patience: float
) -> Figures:
    """Seconds of both in turn, after a round that does not count; both must have read everything."""
    assert ours() == expected
    assert theirs() >= expected
    taken = interleave(
        {"theirs": lambda: seconds(theirs), "ours": lambda: seconds(ours)}, rounds, patience=patience
    )
    return taken | {"bytes": expected}


def run(quick: bool) -> Figures:
    """Measure. Quick: a tenth of the data, fewer rounds."""
    scale, pace = (10, (3, 0.0)) if quick else (1, (5, PATIENCE))
    results: dict[str, Figures] = {}
    with workspace() as folder:
        members = images(scale)
        total = sum(len(content) for _, content in members)
        path = write_zip(folder / "d1.zip", members)
        with zipfile.ZipFile(path) as theirs, lake.archive(path) as ours:
            names = theirs.namelist()
            results["zip, D1, shuffled, 2 threads"] = compare(
                lambda: shuffled(lambda i: theirs.read(names[i]), len(names)),
                lambda: shuffled(ours.__getitem__, len(names)),
                total,
                *pace,
            )
        for name, found in (("D1", members), ("D4", texts(scale))):
            results.update(sequential(folder, name, found, pace))
    return {"versions": versions("zstandard"), "results": results}


def sequential(
    folder: Path, name: str, members: Members, pace: tuple[int, float]
) -> Iterator[tuple[str, Figures]]:
    """The members in order, out of each kind of tar.zst."""
    total = sum(len(content) for _, content in members)
    for kind, path in write_tars(folder, name, members).items():
        with lake.archive(path) as ours:
            yield (
                f"tar.zst, {name}, {kind}, in order",
                compare(
                    lambda path=path: decompressed(path), lambda ours=ours: sum(map(len, ours)), total, *pace
                ),
            )


def bars(figures: Figures) -> list[Bar]:
    """Bar 17. D1 does not compress: there, zstandard copies, and whatever hands out members copies once more."""
    asks = {"zip, D1, shuffled, 2 threads": 2.0}
    asks |= {f"tar.zst, {name}, small frames, in order": 0.9 for name in ("D1", "D4")}
    found = []
    for row, least in asks.items():
        taken = figures["results"][row]
        reached = ratio(taken["theirs"], taken["ours"])
        found.append(Bar(17, row, f"≥ {least:g}x", f"{plus_minus(reached)}x", reached[0] >= least))
    return found


def page(figures: Figures) -> str:
    """The table as Markdown."""
    rows = []
    for name, taken in figures["results"].items():
        rates = [
            median_and_spread([taken["bytes"] / s / 1e6 for s in taken[who]]) for who in ("theirs", "ours")
        ]
        reached = ratio(taken["theirs"], taken["ours"])
        rows.append([name, *(plus_minus(rate, 0) for rate in rates), plus_minus(reached)])
    return table(["what", "library, MB/s", "lake, MB/s", "ratio"], rows)


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """No picture: four numbers say it."""
    return None
