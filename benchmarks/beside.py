"""Shuffled samples from a bucket, through a cache that begins empty: lake and its peers in one table.

D1 lies in a bucket on this machine that adds no delay, kept by each library in its own format, in shards of 8
MiB. Each reads it sample by sample as `(key, image, label)`, shuffled as its guide advises, twice, in one
process without workers. Every round begins with a fresh process and an empty cache.

- first: seconds from opening the data set to its first sample;
- fetched: bytes that the bucket sent in both epochs, over the bytes of the images;
- same shard: how often the next sample is from the same 8 MiB of the input; uniform says what a uniform
  permutation would give;
- together: how many neighbours of the input come out within 256 samples of each other;
- resume: whether an epoch that stops after two fifths and goes on in another object is sample by sample the one
  that did not stop ("none": the library has no state to save);
- flipped bit: what became of one bit flipped in the middle of a stored image: "found" (an error),
  "delivered" as if it were right, or "cut short": the epoch ends early, without an error.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.bucket import Bucket, served
from benchmarks.ingest import stored
from benchmarks.report import PATIENCE, Bar, interleave, median_and_spread, table, workspace

SHARD = 8 * 2**20
BATCH = 256
STOP = 0.4  # of an epoch, where it is interrupted
TITLES = {
    "lake": "lake",
    "dload": "dload",
    "litdata": "LitData",
    "mosaicml": "MosaicML Streaming",
    "webdataset": "WebDataset",
    "datasets": "HF datasets",
    "lance": "Lance",
}

Figures = dict[str, Any]


# --- measuring --------------------------------------------------------------------------------


def run(quick: bool) -> Figures:
    """Measure. Quick: a twentieth of the rows, two rounds."""
    scale, rounds = (20, 2) if quick else (1, 5)
    missing: dict[str, str] = {}
    with workspace() as folder:
        source, _ = stored("D1", scale, folder)
        home = folder / "bucket"
        versions, payload = prepare(source, home, missing)
        with served(home) as bucket:
            for name in list(versions):  # a round to warm up, which does not count
                try:
                    epochs(name, bucket, folder)
                except peers.PeerFailed as error:
                    missing[TITLES[name]] = _last_line(error)
                    del versions[name]
            taken = interleave(
                {name: lambda name=name: epochs(name, bucket, folder) for name in versions}, rounds
            )
            promises = {name: promised(name, bucket, home, folder, source) for name in versions}
    return {
        "versions": {package: number for of in versions.values() for package, number in of.items()},
        "missing": missing,
        "bytes": payload,
        "rounds": {name: [_judged(one) for one in of] for name, of in taken.items()},
        "promises": promises,
        "uniform": _uniform(taken),
    }


def prepare(source: Path, home: Path, missing: dict[str, str]) -> tuple[dict[str, dict[str, str]], int]:
    """Let each peer that is here keep the data below its name; their versions, and the bytes of the images."""
    import pyarrow.compute as pc

    payload = pc.sum(pc.binary_length(_images(source))).as_py()
    versions = {}
    for name in TITLES:
        try:
            with peers.Peer(name) as peer:
                peer.ask("store", source=str(source), folder=str(home / name), shard_bytes=SHARD)
                versions[name] = peer.versions
        except peers.PeerMissing as why:
            missing[TITLES[name]] = str(why)
    return versions, payload


def epochs(name: str, bucket: Bucket, folder: Path) -> dict[str, Any]:
    """One round of one peer."""
    cache = folder / "cache"
    with peers.Peer(name) as peer, _largest(cache) as disk:
        bucket.counts()
        told = peer.ask("stream", prefix=name, endpoint=bucket.url, cache=str(cache), patience=PATIENCE)
        sent = bucket.counts()
    shutil.rmtree(cache, ignore_errors=True)
    return {**told, "disk": disk[0], "fetched": sent.bytes, "requests": sent.requests}


def promised(name: str, bucket: Bucket, home: Path, folder: Path, source: Path) -> dict[str, Any]:
    """Whether a stopped epoch goes on exactly, and what becomes of a flipped bit."""
    images = _images(source)
    asked: dict[str, Any] = {"prefix": name, "endpoint": bucket.url, "cache": str(folder / "cache")}
    resumed = _asked(name, folder, "resume", items=int(STOP * len(images)), **asked)
    with _flipped(home / name, images[len(images) // 2]):
        audited = _asked(name, folder, "audit", source=str(source), **asked)
    return {"resume": resumed, "audit": audited}


def _asked(name: str, folder: Path, question: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a fresh process with an empty cache."""
    with peers.Peer(name) as peer:
        try:
            return peer.ask(question, **arguments)
        except peers.PeerFailed as error:
            return {"failed": _last_line(error)}
        finally:
            shutil.rmtree(folder / "cache", ignore_errors=True)


def _images(source: Path) -> Any:
    import pyarrow as pa

    with pa.OSFile(str(source)) as file:
        return pa.ipc.open_stream(file).read_all()["image"]


@contextmanager
def _flipped(folder: Path, image: Any) -> Iterator[None]:
    """One bit is another in the middle of a stored image, until the block ends."""
    inside = image.as_py()[len(image.as_py()) // 2 :][:64]
    path, place = next(
        (path, place)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (place := path.read_bytes().find(inside)) >= 0
    )

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))

    flip()
    try:
        yield
    finally:
        flip()


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


@contextmanager
def _largest(folder: Path) -> Iterator[list[int]]:
    """The most bytes that the files in a folder have had, looked at every tenth of a second."""
    most, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            most[0] = max(most[0], _size(folder))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        most[0] = max(most[0], _size(folder))
        done.set()
        watcher.join()


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_blocks * 512
        except FileNotFoundError:  # it went while this looked
            continue
    return size


def _judged(told: dict[str, Any]) -> dict[str, Any]:
    """A round's figures, the order of its keys as what it says of the shuffle."""
    keys = np.array(told.pop("keys"))
    return {**told, **quality(keys)}


def quality(keys: np.ndarray) -> dict[str, float]:
    """How far an order of rows is from that of the input: `same` shard next, and neighbours `together`."""
    shards = keys // (SHARD // 7500)  # 7,500 bytes is the mean sample
    places = np.empty(len(keys), np.int64)
    places[keys] = np.arange(len(keys))
    return {
        "same": float((shards[1:] == shards[:-1]).mean()),
        "together": float((np.abs(np.diff(places)) < BATCH).mean()),
    }


def _uniform(taken: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    rows = next(iter(taken.values()))[0]["rows"][0]
    return quality(np.random.default_rng(0).permutation(rows))


# --- showing ----------------------------------------------------------------------------------

HEADER = (
    "",
    "samples/s, epoch 1",
    "epoch 2",
    "first, s",
    "CPU s / M samples",
    "peak memory, MB",
    "disk, MB",
    "fetched",
    "same shard",
    "together",
    "resume",
    "flipped bit",
)
EXCERPT = (
    "",
    "samples/s, epoch 1",
    "epoch 2",
    "first, s",
    "CPU s / M samples",
    "fetched",
    "same shard",
    "resume",
    "flipped bit",
)


def bars(figures: Figures) -> list[Bar]:
    """None: the table speaks."""
    return []


def excerpt(figures: Figures) -> str:
    """What the README shows of it: the columns that are easy to understand."""
    shown = [HEADER.index(name) for name in EXCERPT]
    rows = [[_row(name, figures)[at] for at in shown] for name in figures["rounds"]]
    return table(EXCERPT, rows)


def page(figures: Figures) -> str:
    """The table as Markdown."""
    uniform = figures["uniform"]
    rows = [_row(name, figures) for name in figures["rounds"]]
    rows.append(["uniform", *["–"] * 7, f"{uniform['same']:.3f}", f"{uniform['together']:.4f}", "–", "–"])
    skipped = "".join(f"\n\nNot here: {name} ({why})." for name, why in figures["missing"].items())
    return table(HEADER, rows) + skipped


def _row(name: str, figures: Figures) -> list[str]:
    rounds, promises = figures["rounds"][name], figures["promises"][name]

    def middle(value: Callable[[dict[str, Any]], float]) -> float:
        return median_and_spread([value(one) for one in rounds])[0]

    return [
        TITLES[name],
        f"{middle(lambda one: one['rows'][0] / one['epoch1']):,.0f}",
        f"{middle(lambda one: one['rows'][1] / one['epoch2']):,.0f}",
        f"{middle(lambda one: one['first']):.2f}",
        f"{middle(lambda one: one['cpu'] * 1e6):.0f}",
        f"{middle(lambda one: one['peak']) / 1e6:.0f}",
        f"{middle(lambda one: one['disk']) / 1e6:.0f}",
        f"{middle(lambda one: one['fetched']) / figures['bytes']:.2f}",
        f"{middle(lambda one: one['same']):.3f}",
        f"{middle(lambda one: one['together']):.4f}",
        _resumes(promises["resume"]),
        _finds(promises["audit"]),
    ]


def _resumes(told: dict[str, Any]) -> str:
    if "failed" in told:
        return "fails"
    return {None: "none", True: "exact", False: "not exact"}[told["exact"]]


def _finds(told: dict[str, Any]) -> str:
    if told.get("raised") or "failed" in told:
        return "found"
    if told["wrong"] > 1:  # one bit is in one sample; the others never came
        return "cut short"
    return "delivered" if told["wrong"] else "not read"


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the table says it all."""
    return None
