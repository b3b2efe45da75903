"""Bring a version onto this machine: every part whole in the cache, so that reading needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lake.config import format_bytes
from lake.errors import BudgetError
from lake.format.values import Part
from lake.parts.meter import Meter
from lake.progress import progress as show
from lake.snapshot import Snapshot

_DOWNLOADS = 8


@dataclass(frozen=True, slots=True)
class Pulled:
    """What `pull` found and did: stored bytes of the parts, and how many of them had to be fetched."""

    name: str
    version: str
    bytes: int
    bytes_fetched: int


def pull(snapshot: Snapshot, *, columns: Sequence[str] | None = None, progress: bool | None = None) -> Pulled:
    """Have the parts that hold these columns, or any, in the cache. A lake in a folder is there already.

    Raises:
        BudgetError: the cache may not hold that much; nothing was fetched.
    """
    parts = _parts(snapshot, columns)
    size = sum(part.bytes for part in parts)
    if snapshot.cache is None:
        return Pulled(snapshot.name, snapshot.version, size, 0)
    budget = snapshot.cache.budget
    if budget is not None and size > budget:
        raise BudgetError(
            f"{snapshot.name} has {format_bytes(size)}, the cache's budget is {format_bytes(budget)}: raise it, or "
            "pull with columns=",
            needed=size,
            budget=budget,
        )
    meter = Meter()
    with (
        show(progress, f"pull {snapshot.name}", size, unit="bytes") as bar,
        ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="lake-pull") as pool,
    ):

        def keep(part: Part) -> None:
            snapshot.reader.keep(part, meter)
            bar.advance(part.bytes)

        futures = [pool.submit(keep, part) for part in parts]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Pulled(snapshot.name, snapshot.version, size, meter.bytes_fetched)


def _parts(snapshot: Snapshot, columns: Sequence[str] | None) -> list[Part]:
    """The parts that hold any of the columns, each once, in the version's order."""
    wanted = set(snapshot.columns(columns))
    found = (part for shard in snapshot.manifest.shards() for part in shard.parts)
    return list({part.digest: part for part in found if wanted & set(part.fields)}.values())
