"""What a large lake costs, on paper, and checked: requests, manifest bytes, memory, egress, and what GPUs eat.

Versions of 10^3 to 10^6 synthetic shards are opened and planned through a store that counts. The model is a
line through the two largest sizes; to check it, the line through the two before says what the largest should be.
"""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import lake
from benchmarks import versions as synthetic
from benchmarks.data import d1
from benchmarks.peers.tasks import peak_memory
from benchmarks.report import RESULTS, table, versions, workspace
from lake.repo import Lake
from lake.stores import LocalStore

Figures = dict[str, Any]
COUNTED = ("requests", "read bytes", "memory")

# --- a large cluster --------------------------------------------------------------------------

STORED = 10**15  # bytes: 1 PB
SHARDS = 8_000_000
NODES, RANKS = 512, 8  # ranks of a node: 4,096 in all
DOWNLOADS, LATENCY = 8, 0.03  # requests of a machine at once; seconds that one takes to begin
BANDWIDTH = 1.25e9  # bytes/s of a node: 10 Gbit/s


@dataclass(frozen=True, slots=True)
class Gpu:
    """A processor that trains: its bf16 tensor operations a second, without sparsity."""

    name: str
    flops: float
    source: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is trained: operations and stored bytes of one item."""

    name: str
    item: str
    flops: float  # forward and backward
    bytes: float
    source: str


MFU = 0.4  # of the peak: 0.38 to 0.46 in Chowdhery et al. 2022 (PaLM), table 3; small models reach less
GPUS = (
    Gpu("A100", 312e12, "NVIDIA A100 data sheet"),
    Gpu("H100 SXM", 989e12, "NVIDIA H100 data sheet"),
    Gpu("B200", 2250e12, "NVIDIA Blackwell data sheet"),
)
MODELS = (
    Model("language model, 0.1 B", "token", 6 * 0.1e9, 2, "6 N: Kaplan et al. 2020, section 2.1; uint16"),
    Model("language model, 0.5 B", "token", 6 * 0.5e9, 2, "likewise"),
    Model(
        "ResNet-50, 224 px",
        "image",
        3 * 2 * 4.1e9,
        110e3,
        "4.1 G multiply-adds: He et al. 2015; 110 KB: mean JPEG of ImageNet",
    ),
    Model(
        "ViT-B/16 (0.086 B), 224 px",
        "image",
        3 * 2 * 17.6e9,
        110e3,
        "17.6 G multiply-adds: Touvron et al. 2021 (DeiT), table 5",
    ),
    Model(
        "ViT-L/16 (0.3 B), 224 px", "image", 3 * 2 * 61.6e9, 110e3, "61.6 G multiply-adds: Liu et al. 2021"
    ),
)


def eaten(model: Model, gpu: Gpu, gpus: int) -> float:
    """Items a second that so many processors train on."""
    return gpus * MFU * gpu.flops / model.flops


# --- measuring --------------------------------------------------------------------------------


def run(quick: bool) -> Figures:
    """Count. Quick: up to 5,000 shards."""
    sizes = (200, 1000, 5000) if quick else (10**3, 10**4, 10**5, 10**6)
    counted = {}
    for shards in sizes:
        with workspace() as folder:
            synthetic.large(synthetic.opened(folder), shards)
            counted[str(shards)] = _alone(folder)
    with workspace() as folder:
        read = epoch(folder)
    return {"versions": versions("numpy", "pyarrow"), "counted": counted, "epoch": read}


def _alone(folder: Path) -> Figures:
    """What opening and planning took, in a fresh process with an empty cache."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        return pool.apply(_planned, (folder,))


def _planned(folder: Path) -> Figures:
    store = synthetic.Bucket(LocalStore(folder / "lake"))
    settings = replace(lake.open(folder / "lake").settings, cache_dir=folder / "fresh")
    lk = Lake(store, settings, progress=False)
    before = peak_memory()
    ds = lk.dataset(synthetic.NAME)
    batches = len(ds.scan(batch_size=1024, shuffle=True))
    return {
        "requests": sum(store.counts.values()),
        "read bytes": store.bytes_read,
        "memory": peak_memory() - before,
        "batches": batches,
    }


def epoch(folder: Path) -> Figures:
    """Requests and bytes of a cold shuffled epoch of a quarter of D1, and of one node of eight."""
    batches = list(d1(4))
    data = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
    lk = lake.open(folder / "lake", cache_dir=folder / "cache", progress=False)
    version = lk.commit("D1", data, shard_bytes="2MiB", progress=False)
    store = synthetic.Bucket(LocalStore(folder / "lake"))
    return {
        "shards": version.shards,
        "stored": version.bytes,
        "whole": _read(store, folder / "whole"),
        "one node of eight": _read(store, folder / "share", rank=0, world_size=8, node=0, nodes=8),
    }


def _read(store: synthetic.Bucket, cache: Path, **ranks: int) -> Figures:
    """What an epoch asks for, once the data set is open."""
    settings = lake.open(cache / "none", cache_dir=cache, cache_budget="unlimited").settings
    scan = Lake(store, settings, progress=False).dataset("D1").scan(shuffle=True, **ranks)
    len(scan)
    store.reset()
    rows = sum(batch.num_rows for batch in scan)
    return {"rows": rows, "requests": sum(store.counts.values()), "read bytes": store.bytes_read}


# --- the model --------------------------------------------------------------------------------


def line(counted: Figures, what: str) -> tuple[float, float]:
    """Of what is counted: so much at least, and so much more a shard, by the two largest sizes."""
    (few, low), (many, high) = [(int(size), of[what]) for size, of in counted.items()][-2:]
    slope = (high - low) / (many - few)
    return low - slope * few, slope


def predicted(counted: Figures, what: str, shards: int) -> float:
    """What the line says."""
    least, slope = line(counted, what)
    return least + slope * shards


def but_the_last(counted: Figures) -> Figures:
    """What a model knows that is to be checked by the largest size."""
    return dict(list(counted.items())[:-1])


def cluster(figures: Figures) -> list[list[str]]:
    """The large cluster, by the lines through what was counted."""
    counted, read = figures["counted"], figures["epoch"]
    requests = predicted(counted, "requests", SHARDS)
    document = predicted(counted, "read bytes", SHARDS)
    memory = predicted(counted, "memory", SHARDS)
    of_shard = read["whole"]["requests"] / read["shards"]
    over = 8 * read["one node of eight"]["read bytes"] / read["whole"]["read bytes"]
    opened = max(requests / DOWNLOADS * LATENCY, document / BANDWIDTH)
    share = STORED / NODES * (1 + (over - 1) * (NODES / SHARDS) / (8 / read["shards"]))
    return [
        ["stored, in shards of", f"{STORED / 1e15:.0f} PB", f"{STORED / SHARDS / 1e6:.0f} MB"],
        ["manifest, of the data", f"{document / 1e9:.1f} GB", f"{document / STORED:.1e}"],
        [
            "opening, once a node, and it takes",
            f"{requests:,.0f} requests",
            f"{opened:.0f} s at {BANDWIDTH / 1e9:.2f} GB/s",
        ],
        ["memory of a plan, of a node", f"{memory / 1e9:.1f} GB a rank", f"{RANKS * memory / 1e9:.0f} GB"],
        [
            "requests of an epoch, of a node",
            f"{of_shard * SHARDS:,.0f}",
            f"{of_shard * SHARDS / NODES:,.0f}",
        ],
        [
            "egress of an epoch, of a node",
            f"{share * NODES / 1e15:.3f} PB",
            f"{share / 1e12:.2f} TB, {share / BANDWIDTH / 3600:.1f} h",
        ],
        ["an append, whatever the size", "its own parts", "and a handful of small objects"],
    ]


# --- showing ----------------------------------------------------------------------------------


def bars(figures: Figures) -> list[Any]:
    """None: bar 15 is in `versions` and `plan`."""
    return []


def page(figures: Figures) -> str:
    """What was counted and what the model says of it, as Markdown."""
    return f"{_counts(figures)}\n\nWhat follows from it for a large cluster: [scale](scale.md)."


def document(figures: Figures) -> str:
    """docs/scale.md."""
    return "\n\n".join(
        [
            "# Scale",
            "Made by `python -m benchmarks --docs` from what `python -m benchmarks scale` counted.",
            "## What is counted",
            _counts(figures),
            _MODEL,
            "## A large cluster",
            _cluster(figures),
            _LIMITS,
            "## What is trained on, and what is delivered",
            _appetite(),
        ]
    )


_MODEL = """Requests grow with segments, one for some 2,048 shards, and bytes with shards, some 650 each,
most of them the places and checks of record batches, which make ranged reads possible. Both are paid once
by a machine: segments are immutable and stay in its cache. Memory is of each process that plans; an epoch's
order is computed, not stored. An append reads none of it (`versions` in [benchmarks](benchmarks.md) counts
its requests).

A part is one request where it is wanted whole, and ranges where it is not; the first block of a
shuffle asks for pieces of a window of shards. Neighbouring nodes both read the shards of a window where
their shares meet: little, as soon as a share is many windows."""

_LIMITS = """Two things would have to be watched at this size. Memory: each rank keeps the numbers of all
shards; where a node has eight, shards of twice the size halve it. The log: one entry a commit, read by
number, costs the same at any length, but commits take turns, so thousands of writers a minute belong into
one commit (`lake.ray.write`), not into as many appends."""


def _counts(figures: Figures) -> str:
    counted = figures["counted"]
    rows = [
        [
            f"{int(size):,}",
            f"{of['requests']:,}",
            f"{of['read bytes'] / 1e6:,.1f} MB",
            f"{of['memory'] / 1e6:,.0f} MB",
        ]
        for size, of in counted.items()
    ]
    largest = int(list(counted)[-1])
    said = [predicted(but_the_last(counted), what, largest) for what in COUNTED]
    rows.append(
        [
            f"{largest:,}, by those before",
            f"{said[0]:,.0f}",
            f"{said[1] / 1e6:,.1f} MB",
            f"{said[2] / 1e6:,.0f} MB",
        ]
    )
    read = figures["epoch"]
    whole, share = read["whole"], read["one node of eight"]
    return (
        "Opening a version and planning a shuffled epoch, with nothing cached:\n\n"
        f"{table(['shards', 'requests', 'read', 'memory'], rows)}\n\n"
        f"A cold shuffled epoch of {read['shards']} shards, {read['stored'] / 1e6:.0f} MB: "
        f"{whole['requests']} requests, {whole['read bytes'] / read['stored']:.3f} of the bytes; one node of eight: "
        f"{share['requests']} requests, {share['read bytes'] / read['stored']:.3f} of the bytes, "
        f"for {share['rows'] / whole['rows']:.3f} of the rows."
    )


def _cluster(figures: Figures) -> str:
    what = (
        f"The same lines at {SHARDS:,} shards, {NODES} nodes of {RANKS} ranks, {DOWNLOADS} requests of a node at once "
        f"that take {LATENCY * 1000:.0f} ms to begin, {BANDWIDTH / 1e9:.2f} GB/s a node:"
    )
    return f"{what}\n\n{table(['', 'in all', 'each'], cluster(figures))}"


def _appetite() -> str:
    """What is trained on, beside what the scan of `benchmarks.scan` delivered."""
    header = ["", *(f"{count} x {gpu.name}" for gpu in GPUS for count in (1, 4)), "unit"]
    rows = [
        [
            model.name,
            *(f"{eaten(model, gpu, count) * model.bytes / 1e6:,.1f}" for gpu in GPUS for count in (1, 4)),
            "MB/s",
        ]
        for model in MODELS
    ]
    sources = "; ".join(f"{of.name}: {of.source}" for of in (*MODELS, *GPUS))
    return (
        "What is trained on in a second, as stored bytes: operations a second x "
        f"{MFU} (PaLM reached 0.46, Chowdhery et al. 2022; small models reach less), over those of an item.\n\n"
        f"{table(header, rows)}\n\nSources: {sources}.\n\n{_delivered()}"
    )


def _delivered() -> str:
    """What two cores deliver, by the kept figures."""
    path = RESULTS / "scan.json"
    ways = json.loads(path.read_text("utf-8"))["figures"]["ways"]
    widths = {"D1": 7500, "D2": 4096, "D3": 1032}  # bytes of a row
    told = [
        f"{name}: {of['rows_per_second'] * widths[name[:2]] / 1e6:,.0f} MB/s"
        for name, of in ways.items()
        if "scan(" in name
    ]
    return f"What a loader of 2 cores delivered here (`scan`): {'; '.join(told)}."


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Nothing: the tables say it all."""
    return None
