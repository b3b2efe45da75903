"""Keeping data: how fast a stream of record batches gets to the disk, beside peers; and the same again, edited.

All take the same batches from memory, in shards of 64 MiB (quick: 8), and count as done when a crash could no
longer take anything away: what a peer does not force to the disk is forced on its clock. What each has kept is
read back and compared once, in the round before the first that counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import peers
from benchmarks.data import SETS
from benchmarks.report import (
    CALM,
    PATIENCE,
    Bar,
    calmest,
    canvas,
    interleave,
    median_and_spread,
    plot,
    plus_minus,
    ratio,
    reaches,
    table,
    workspace,
)

MIB = 2**20
SHARD_MIB = 64
EDIT_MIB = (8, 64)  # shards of what is committed again
CONTESTANTS = ("lake", "arrow", "arrow_behind", "lance", "dload")
TITLES = {
    "lake": "lake",
    "arrow": "Arrow IPC, fsync after each file",
    "arrow_behind": "Arrow IPC, fsync in a thread",
    "lance": "Lance",
    "dload": "dload",
}
BELOW = (("dload", 2.0), ("lance", 0.8), ("arrow", 0.8))  # bar 13: lake's rate over theirs, at least

Figures = dict[str, Any]


# --- measuring --------------------------------------------------------------------------------


def run(quick: bool) -> Figures:
    """Measure. Quick: an eighth of the rows in shards of an eighth, three rounds."""
    scale, rounds, patience = (8, 3, 0.0) if quick else (1, 5, PATIENCE)
    shard_bytes = SHARD_MIB * MIB // scale
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    sets = {}
    with workspace() as folder:
        for name in ("D1", "D2"):
            source, size = stored(name, scale, folder)
            work = {"source": str(source), "shard_bytes": shard_bytes}
            with running(CONTESTANTS, missing) as asked:
                for peer in asked.values():
                    versions |= peer.versions
                times = compare(asked, folder, rounds, {**work, "patience": patience})
            peaks = {one: peak(one, folder, work) for one in times}
            of_steps = steps(name, scale, shard_bytes)
            sets[name] = {"bytes": size, "rounds": times, "memory": peaks, "steps": of_steps}
            source.unlink()
        source, size = stored("D3", scale, folder)
        of_steps = steps("D3", scale, shard_bytes)
        work = {"source": str(source), "patience": patience}
        again = {
            str(mib // scale): recommit(folder, rounds, {**work, "shard_bytes": mib * MIB // scale})
            for mib in EDIT_MIB
        }
    return {
        "versions": versions,
        "missing": missing,
        "sets": sets,
        "recommit": {"bytes": size, "rounds": again, "steps": of_steps},
    }


def compare(asked: dict[str, peers.Peer], folder: Path, rounds: int, work: Figures) -> dict[str, Any]:
    """What each peer told of each round."""

    def act(name: str, check: bool) -> Callable[[], dict[str, Any]]:
        return lambda: asked[name].ask("ingest", folder=str(folder / name), check=check, **work)

    interleave({name: act(name, True) for name in asked}, 1)
    return calm_rounds({name: act(name, False) for name in asked}, rounds)


def calm_rounds(
    contestants: dict[str, Callable[[], dict[str, Any]]], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """The calmest rounds of at most twice as many: as soon as there are enough calm ones, those."""
    taken = interleave(contestants, rounds)
    for _ in range(rounds):
        worst = max(of["others"] for told in calmest(taken, rounds).values() for of in told)
        if worst <= CALM:
            break
        for name, more in interleave(contestants, 1).items():
            taken[name] += more
    return calmest(taken, rounds)


def peak(name: str, folder: Path, work: Figures) -> dict[str, int]:
    """What a fresh process of a peer had resident, before and at most, when its input came from a file."""
    with peers.Peer(name) as peer:
        return peer.ask("memory", folder=str(folder / name), **work)


def recommit(folder: Path, rounds: int, work: Figures) -> list[dict[str, Any]]:
    """What lake told of each round, after one to warm up."""
    with peers.Peer("lake") as peer:

        def act() -> dict[str, Any]:
            return peer.ask("recommit", folder=str(folder / "again"), **work)

        act()
        return calm_rounds({"lake": act}, rounds)["lake"]


def steps(name: str, scale: int, shard_bytes: int) -> dict[str, float]:
    """Seconds of one processor that each step of a commit takes when it is all that runs."""
    from lake.format import content, part, schema, stats
    from lake.ingest import column_means, slabs

    spent: dict[str, float] = {}

    def timed(step: str, act: Callable[[], Any]) -> Any:
        begin = time.thread_time()
        result = act()
        spent[step] = spent.get(step, 0.0) + time.thread_time() - begin
        return result

    batches = list(SETS[name](scale))
    form = schema.stored_schema(schema.canonical_schema(batches[0].schema))
    key = "key" if "key" in form.names else None
    conformed = timed("conform", lambda: [schema.conform(batch, form) for batch in batches])
    for slab in timed("hash keys, measure rows, cut", lambda: list(slabs(conformed, key, shard_bytes))):
        timed("statistics", lambda slab=slab: stats.shard_stats(slab.chunks, form, key))
        for fields in part.group_fields(column_means(slab)):
            chunks = [chunk.select(list(fields)) for chunk in slab.chunks]
            columns = [[chunk.column(i) for chunk in chunks] for i in range(len(fields))]
            timed(
                "sha256 of values",
                lambda chunks=chunks, columns=columns: content.content_digest(
                    list(chunks[0].schema), columns
                ),
            )
            timed(
                "xxh3 of columns",
                lambda columns=columns: [content.column_check(one) for column in columns for one in column],
            )
            timed(
                "encode, with xxh3 and sha256 of the file",
                lambda chunks=chunks: part.encode_part(chunks, _Nowhere(), content="", target=shard_bytes),
            )
    return spent


class _Nowhere:
    """A file that forgets."""

    def write(self, data: Any) -> int:
        return len(data)


@contextmanager
def running(names: tuple[str, ...], missing: dict[str, str]) -> Iterator[dict[str, peers.Peer]]:
    """The peers that can be asked on this machine; why others cannot is printed and put into `missing`."""
    with ExitStack() as stack:
        asked = {}
        for name in names:
            try:
                asked[name] = stack.enter_context(peers.Peer(name))
            except peers.PeerMissing as error:
                if name not in missing:
                    print(f"{name} is skipped: {error}", flush=True)
                missing[name] = str(error)
        yield asked


def stored(name: str, scale: int, folder: Path) -> tuple[Path, int]:
    """A data set as a file that peers read it from, and the bytes of its values."""
    path, size = folder / f"{name}.arrows", 0
    batches = SETS[name](scale)
    first = next(batches)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
        for batch in (first, *batches):
            writer.write_batch(batch)
            size += batch.nbytes
    return path, size


# --- judging ----------------------------------------------------------------------------------


def column(rounds: list[dict[str, Any]], name: str) -> list[float]:
    """One figure of all rounds."""
    return [of[name] for of in rounds]


def bars(figures: Figures) -> list[Bar]:
    """Bars 13 and 14."""
    found = []
    for name, of in figures["sets"].items():
        lake = column(of["rounds"]["lake"], "seconds")
        for other, least in BELOW:
            if other in of["rounds"]:
                times = ratio(column(of["rounds"][other], "seconds"), lake)
                what = f"{name}, rate over that of {TITLES[other].partition(',')[0]}"
                found.append(Bar(13, what, f"≥ {least}", plus_minus(times), reaches(times, least)))
        most = of["memory"]["lake"]["peak"]
        found.append(Bar(13, f"{name}, peak memory", "≤ 1 GB", f"{most / 1e9:.2f} GB", most <= 1e9))
    for mib, rounds in figures["recommit"]["rounds"].items():
        faster = ratio(column(rounds, "first"), column(rounds, "second"))
        shards = max(of["shards"] for of in rounds)
        what = f"D3 with one row edited, shards of {mib} MiB"
        found.append(Bar(14, what, "≥ 5 x faster", plus_minus(faster, 1), reaches(faster, 5)))
        found.append(Bar(14, what, "≤ 2 parts uploaded", str(shards), shards <= 2))
    return found


# --- showing ----------------------------------------------------------------------------------


def page(figures: Figures) -> str:
    """The tables as Markdown."""
    texts = []
    for name, of in figures["sets"].items():
        texts += [f"### {name}, {of['bytes'] / 1e6:.0f} MB", _rates(of)]
    texts += [f"{TITLES[name]} was skipped: {why}." for name, why in figures["missing"].items()]
    return "\n\n".join([*texts, _where(figures), _again(figures)])


def _rates(of: Figures) -> str:
    size, lake = of["bytes"] / 1e6, of["rounds"]["lake"]
    rows = []
    for name, rounds in of["rounds"].items():
        took, cpu = column(rounds, "seconds"), column(rounds, "cpu")
        rows.append(
            [
                TITLES[name],
                plus_minus(median_and_spread([size / one for one in took]), 0),
                plus_minus(ratio(took, column(lake, "seconds"))),
                plus_minus(median_and_spread(cpu)),
                f"{median_and_spread(column(rounds, 'syncs'))[0]:.0f}",
                plus_minus(median_and_spread(column(rounds, "sync_seconds"))),
                f"{max(column(rounds, 'others')):.1f}",
                f"{rounds[0]['stored'] / 1e6:.0f}",
                f"{of['memory'][name]['peak'] / 1e6:.0f}",
                f"{(of['memory'][name]['peak'] - of['memory'][name]['before']) / 1e6:.0f}",
            ]
        )
    header = ["", "MB/s", "lake's rate over it", "CPU s", "fsyncs", "take s", "others", "stored, MB"]
    header += ["peak memory, MB", "above idle"]
    return table(header, rows)


def _where(figures: Figures) -> str:
    again = figures["recommit"]
    first = [{"cpu": of["first_cpu"]} for of in [*again["rounds"].values()][-1]]
    commits = {name: (of["steps"], of["rounds"]["lake"]) for name, of in figures["sets"].items()}
    commits["D3"] = (again["steps"], first)
    names = list(dict.fromkeys(step for spent, _ in commits.values() for step in spent))
    rows = [[step, *(f"{spent.get(step, 0):.2f}" for spent, _ in commits.values())] for step in names]
    rows.append(["all of these", *(f"{sum(spent.values()):.2f}" for spent, _ in commits.values())])
    whole = [plus_minus(median_and_spread(column(rounds, "cpu"))) for _, rounds in commits.values()]
    rows.append(["the whole commit", *whole])
    text = (
        "### Where lake's time goes\n\n"
        "Seconds of one processor, each step alone on data in memory. A commit runs them in three threads, beside\n"
        "the writing and the waiting for fsyncs (above; seconds of all threads together). The two sha256 passes (of\n"
        "the values, which finds what is stored already, and of the file, which names it) and the copy into the\n"
        "kernel are what cannot be left out. To commit again what is stored costs all but the encoding."
    )
    return text + "\n\n" + table(["step", *(f"{name}, s" for name in commits)], rows)


def _again(figures: Figures) -> str:
    again = figures["recommit"]
    rows = []
    for mib, rounds in again["rounds"].items():
        first, second = column(rounds, "first"), column(rounds, "second")
        rows.append(
            [
                f"{mib} MiB",
                plus_minus(median_and_spread(first), unit=" s"),
                plus_minus(median_and_spread(second), unit=" s"),
                plus_minus(ratio(first, second), 1),
                plus_minus(ratio(column(rounds, "first_cpu"), column(rounds, "second_cpu")), 1),
                f"{max(column(rounds, 'others')):.1f}",
                f"{max(of['shards'] for of in rounds)} of {rounds[0]['of_shards']}",
                f"{max(of['uploaded'] for of in rounds) / 1e6:.2f} MB",
            ]
        )
    header = ["shards of", "first", "again", "times faster", "in CPU", "others", "parts uploaded", "all new"]
    title = f"### D3, {again['bytes'] / 1e6:.0f} MB: again with one row edited"
    return title + "\n\n" + table(header, rows)


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Rates as bars with the range of the rounds; None without matplotlib."""
    sets = figures["sets"]
    drawn = canvas(4.5 * len(sets), 2.6, len(sets))
    if drawn is None:
        return None
    sheet, (axes,) = drawn
    for axis, (name, of) in zip(axes, sets.items(), strict=True):
        for place, (contestant, rounds) in enumerate(of["rounds"].items()):
            rates = [of["bytes"] / 1e6 / one for one in column(rounds, "seconds")]
            middle, _ = median_and_spread(rates)
            reach = [[middle - min(rates)], [max(rates) - middle]]
            color = "tab:blue" if contestant == "lake" else "tab:gray"
            axis.barh(place, middle, xerr=reach, color=color, capsize=3)
        axis.set_yticks(range(len(of["rounds"])), [TITLES[one] for one in of["rounds"]], fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"keeping {name}, MB/s", fontsize=9)
    sheet.tight_layout()
    path = plot("ingest", quick=quick)
    sheet.savefig(path, dpi=110)
    return path
