"""Commands that bring data somewhere, or say what that takes: `compact`, `export`, `pull`, `plan`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import lake
from lake.cli.app import Json, Name, Url, command
from lake.cli.output import print_record
from lake.config import parse_bytes

Columns = Annotated[
    list[str] | None, typer.Option("--column", "-c", metavar="C", help="Only this column. Repeatable.")
]


@command("compact", "lake compact birds")
def compact(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")],
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="M", help="For the log.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make full shards of many small appends: exactly those of an overwrite. Rows and their order stay."""
    print_record(asdict(lake.open(url).compact(name, message=message)), as_json=as_json)


@command(
    "export",
    "lake export birds birds.parquet",
    "lake export birds@v1 out/ --format csv -c key -c label",
    "lake export birds birds.tar",
)
def export(
    name: Name,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file, or the folder of parts, to make.")],
    form: Annotated[
        Literal["parquet", "csv", "jsonl", "arrow", "webdataset", "folder"] | None,
        typer.Option("--format", help="Default: what PATH ends in, else parquet."),
    ] = None,
    columns: Columns = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Write a version's rows as files that other tools read, and that `lake commit` reads back."""
    ds = lake.open(url).dataset(name)
    ds.export(path, form, columns=columns)
    record = {"name": ds.name, "version": ds.version, "rows": len(ds), "path": str(path)}
    print_record(record, as_json=as_json)


@command("pull", "lake pull birds", "lake pull birds@v1 -c label")
def pull(name: Name, columns: Columns = None, url: Url = None, as_json: Json = False) -> None:
    """Bring a version onto this machine, into the cache: reading it then needs no network."""
    print_record(asdict(lake.open(url).pull(name, columns=columns)), as_json=as_json)


@command(
    "plan",
    "lake plan birds",
    "lake plan birds --shuffle true --budget 60GB --bandwidth 80MB/s",
    "lake plan birds -c label --where \"label <> 'none'\" --json",
)
def plan(
    name: Name,
    columns: Columns = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows that meet this condition.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Rows of a batch.")] = 1024,
    shuffle: Annotated[
        Literal["false", "true", "full"],
        typer.Option(help="As scan's: in order, by windows, or all rows at once."),
    ] = "false",
    window: Annotated[int, typer.Option(min=1, metavar="N", help="Shards that a shuffle mixes.")] = 16,
    world_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Ranks; shown is the first.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of the cache; default: the configured one.")
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="From the store, such as 80MB/s, to tell how long it takes."),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show what an epoch over a version would read and hold, before anything is read; exit code 6 if it cannot fit."""
    scan = (
        lake.open(url, cache_budget=budget)
        .dataset(name)
        .scan(
            columns,
            where,
            batch_size=batch_size,
            shuffle={"false": False, "true": True, "full": "full"}[shuffle],  # type: ignore[arg-type]
            shuffle_window=window,
            rank=None if world_size is None else 0,
            world_size=world_size,
        )
    )
    record: dict[str, Any] = asdict(scan.check(budget=budget))
    if bandwidth is not None:
        rate = parse_bytes(bandwidth.strip().removesuffix("/s"))
        if not rate:
            raise typer.BadParameter("--bandwidth is bytes a second, such as 80MB/s")
        record["fetch_seconds"] = record["fetch_bytes"] / rate
    print_record(record, as_json=as_json)
