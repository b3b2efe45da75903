"""Samples from a folder, one by one and through pipelines, beside peers that hand out single samples.

All deliver the same objects, checked in the round that warms up. Shards of 8 MiB, data in the page cache, each
contestant in a process of its own that stays open, so that checking bytes for the first time is on no clock.

- samples, shuffled samples: D1 as `(key, {field: bytes})`, in this process, each library's own shuffle;
- map and batch: D4, a Python function of each sample, and lists of 64.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import peers
from benchmarks.data import SETS
from benchmarks.peers import pace
from benchmarks.report import (
    PATIENCE,
    Bar,
    calmest,
    interleave,
    median_and_spread,
    plus_minus,
    ratio,
    reaches,
    seconds,
    table,
    workspace,
)
from lake.samples.source import Samples
from lake.samples.values import samples as samples_of
from lake.samples.values import values

SHARD = 8 * 2**20
TITLES = {"lake": "lake", "dload": "dload", "litdata": "LitData", "datasets": "HF datasets"}
WAYS = {"samples": ("D1", "image"), "shuffled samples": ("D1", "image"), "map and batch": ("D4", "text")}

Figures = dict[str, Any]


def run(quick: bool) -> Figures:
    """Measure. Quick: a twentieth of the rows, three rounds."""
    return measure(WAYS, 20 if quick else 1, 3 if quick else 5, profiled=True)


def measure(ways: dict[str, tuple[str, str]], scale: int, rounds: int, *, profiled: bool = False) -> Figures:
    """Each way by every peer that is here and can; of up to twice as many rounds those that were calm."""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    found: dict[str, Any] = {}
    spent: dict[str, Any] = {}
    with workspace() as folder:
        for way, (data, column) in ways.items():
            source = folder / f"{data}.arrows"
            if not source.exists():
                stored(source, data, column, scale)
            running = _started(way, source, folder, missing)
            try:
                for peer in running.values():
                    versions |= peer.versions
                found[way] = _raced(way, running, folder / data, rounds)
            finally:
                for peer in running.values():
                    peer.close()
            if profiled:
                spent[way] = layers(way, folder / data / "lake")
    return {"versions": versions, "missing": missing, "ways": found, "profile": spent}


def layers(way: str, home: Path) -> dict[str, float]:
    """Microseconds a sample of what lake does, one step more in each epoch: the difference is the step's."""
    local = pace.Lake(home, SHARD)
    pipeline = local.pipeline(shuffled=way == "shuffled samples")
    node = pipeline.node
    assert isinstance(node, Samples)
    epochs: dict[str, Callable[[], object]] = {
        "find rows": partial(_made, node, 0),
        "make values": partial(_made, node, 1),
        "make samples": partial(_made, node, 2),
        "hand out": lambda: deque(pipeline, maxlen=0),
    }
    if way == "map and batch":
        epochs["call, batch"] = lambda: deque(local.mapped(pace.measured, 64), maxlen=0)
    interleave({name: partial(seconds, epoch) for name, epoch in epochs.items()}, 1)  # a warm-up
    taken = interleave({name: partial(seconds, epoch) for name, epoch in epochs.items()}, 5)
    ends = [median_and_spread(each)[0] / len(pipeline) * 1e6 for each in taken.values()]
    return {name: end - start for name, start, end in zip(epochs, [0.0, *ends], ends, strict=False)}


def _made(node: Samples, depth: int) -> None:
    """An epoch's rows: found, made values (1), and those made samples (2), as the pipeline does."""
    for batch in node.scan(0).loose():
        columns = [(batch.array(number), field) for number, field in enumerate(batch.schema)]
        for start in range(0, batch.rows if depth else 0, node.part):
            made = [values(array[start : start + node.part], field) for array, field in columns]
            if depth > 1:
                samples_of(made.pop(), node.fields, made)


def stored(source: Path, data: str, column: str, scale: int) -> None:
    """A data set's keys and one column, as bytes, in a file that peers read it from."""

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in SETS[data](scale):
            yield pa.record_batch({"key": batch["key"], "value": batch[column].cast(pa.large_binary())})

    stream = batches()
    first = next(stream)
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in stream:
            writer.write_batch(batch)


def _started(way: str, source: Path, folder: Path, missing: dict[str, str]) -> dict[str, peers.Peer]:
    """The peers that can do it, which have kept the data and gone one round."""
    running: dict[str, peers.Peer] = {}
    sums: dict[str, Any] = {}
    for name, title in TITLES.items():
        try:
            peer = peers.Peer(name)
        except peers.PeerMissing as why:
            missing[title] = str(why)
            continue
        try:
            home = folder / source.stem / name
            if not home.exists():
                peer.ask("keep", source=str(source), folder=str(home), shard_bytes=SHARD)
            sums[name] = _paced(peer, way, home, check=True)["sums"]
            running[name] = peer
        except peers.PeerFailed as error:
            missing[f"{title}, {way}"] = str(error).strip().splitlines()[-1]
            peer.close()
    different = [name for name in running if sums[name] != sums["lake"]]
    if different:
        raise AssertionError(f"{way}: {different[0]} gave {sums[different[0]]}, lake {sums['lake']}")
    return running


def _raced(way: str, running: dict[str, peers.Peer], home: Path, rounds: int) -> dict[str, Any]:
    taken = interleave(
        {name: partial(_paced, peer, way, home / name) for name, peer in running.items()}, 2 * rounds
    )
    calm = calmest(taken, rounds)
    rates = {name: [of["count"] / of["seconds"] for of in each] for name, each in calm.items()}
    return {
        name: {
            "rate": median_and_spread(rates[name]),
            "cpu": median_and_spread([of["cpu"] / of["count"] * 1e6 for of in calm[name]])[0],
            "others": max(of["others"] for of in calm[name]),
            "lake": ratio(rates["lake"], rates[name]),
        }
        for name in running
    }


def _paced(peer: peers.Peer, way: str, home: Path, *, check: bool = False) -> dict[str, Any]:
    return peer.ask("pace", way=way, folder=str(home), shard_bytes=SHARD, patience=PATIENCE, check=check)


def bars(figures: Figures) -> list[Bar]:
    """Bars 6 and 7."""
    found = []
    for way in ("samples", "shuffled samples"):
        others = figures["ways"][way]
        if "dload" in others:
            found.append(_bar(6, f"{way} beside dload", others["dload"]["lake"], 3))
        found += _beside_best(6, way, others, 2)
    if "dload" in (others := figures["ways"]["map and batch"]):
        found.append(_bar(7, "map and batch beside dload", others["dload"]["lake"], 3))
    return found


def _beside_best(number: int, way: str, others: dict[str, Any], least: float) -> list[Bar]:
    """The bar of the fastest peer."""
    best = max(
        (name for name in others if name != "lake"), key=lambda name: others[name]["rate"][0], default=None
    )
    if best is None:
        return []
    return [_bar(number, f"{way} beside {TITLES[best]}, the best peer", others[best]["lake"], least)]


def _bar(number: int, what: str, value: Any, least: float) -> Bar:
    return Bar(number, what, f"≥ {least}", plus_minus(tuple(value)), reaches(tuple(value), least))


def page(figures: Figures) -> str:
    """A table for each way, and who is missing."""
    texts = []
    for way, others in figures["ways"].items():
        rows = [
            [
                TITLES[name],
                f"{of['rate'][0] / 1e3:,.0f} ±{of['rate'][1] / 1e3:,.0f}",
                f"{of['cpu']:.1f}",
                f"{of['others']:.1f}",
                plus_minus(tuple(of["lake"])),
            ]
            for name, of in others.items()
        ]
        header = [way, "thousand samples/s", "CPU s / M samples", "others", "lake is so many times as fast"]
        texts.append(table(header, rows))
    texts += [f"{who}: {why}" for who, why in figures["missing"].items()]
    if figures["profile"]:
        texts.append(_where(figures["profile"]))
    return "\n\n".join(texts)


def _where(profile: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for of in profile.values() for name in of))
    rows = [
        [way, *(f"{of[name]:.2f}" if name in of else "–" for name in names), f"{sum(of.values()):.2f}"]
        for way, of in profile.items()
    ]
    text = (
        "### Where a sample's time goes\n\n"
        "Microseconds a sample, in one process that does nothing else. To make the value of an image is to copy its\n"
        "7 kB from the page cache, at the pace of the memory; a shuffle finds rows in many small pieces, of some 50\n"
        "samples each with shards of 8 MiB."
    )
    return text + "\n\n" + table(["us a sample", *names, "all"], rows)


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the tables say it all."""
