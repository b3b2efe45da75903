"""Commands about one dataset or all of them: `commit`, `ls`, `info`, `head`, `log`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import lake
from lake.cli.app import Json, Name, Url, answers, command, pairs
from lake.cli.output import note, print_json, print_record, print_rows

LOG = (
    "seq",
    "operation",
    "rows_added",
    "rows_removed",
    "bytes_new",
    "bytes_reused",
    "version",
    "author",
    "time",
    "message",
)


@command(
    "commit",
    "lake commit birds --from recordings/ -m 'first recordings'",
    "lake commit flights --from 'flights/*.parquet' --mode append --txn 2026-11-30",
    "lake commit pets --from pets.zip --labels --meta license=CC0",
)
def commit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The dataset; made if it does not exist.")],
    source: Annotated[
        str, typer.Option("--from", metavar="PATH", help="A folder, archive, file or glob; local or s3://.")
    ],
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="How the data came about, kept with it: JSON or text.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="M", help="For the log.")] = None,
    meta: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Kept with the version; V: JSON or text. Repeatable."),
    ] = None,
    mode: Annotated[
        Literal["overwrite", "append"] | None,
        typer.Option(help="Replace the rows (the default) or add to them; needed with --txn."),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="The key column; default: key.")] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Rows have no key.")] = False,
    labels: Annotated[bool, typer.Option("--labels", help="The first directory is the class.")] = False,
    order: Annotated[
        Literal["given", "shuffled"] | None,
        typer.Option(help="shuffled: a random order by the hash of the key."),
    ] = None,
    txn: Annotated[
        str | None, typer.Option(metavar="T", help="Makes it idempotent: the same T again changes nothing.")
    ] = None,
    shard_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Raw bytes of a shard, about.")] = "64MiB",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make files the next version of a dataset; what is stored already is not stored again."""
    if key is not None and no_key:
        raise typer.BadParameter("--key and --no-key exclude each other")
    version = lake.open(url).commit(
        name,
        source,
        mode=mode,
        key=None if no_key else ... if key is None else key,
        order=order,
        labels=labels,
        meta={k: _json_or_text(v) for k, v in pairs(meta, "--meta").items()} if meta else None,
        recipe=_recipe(recipe) if recipe else None,
        message=message,
        txn=txn,
        shard_bytes=shard_bytes,
    )
    print_record(asdict(version), as_json=as_json)


@command("ls", "lake ls", "lake ls --json")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List the datasets at their heads."""
    with answers():
        rows = lake.open(url).sql("from lake.datasets").to_arrow_table().to_pylist()
    print_rows(rows, ("dataset", "rows", "shards", "bytes", "seq", "version", "time"), as_json=as_json)


@command("info", "lake info birds", "lake info birds@#3 --json")
def info(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Show what a version of a dataset is: size, key, columns, meta, recipe and what it was derived from."""
    ds = lake.open(url).dataset(name)
    document = ds.snapshot.document
    derived = ds.derivations()
    record: dict[str, Any] = {
        "dataset": ds.name,
        "version": ds.version,
        "seq": ds.snapshot.entry.seq,
        "time": ds.snapshot.entry.time,
        "rows": len(ds),
        "shards": document.shards,
        "bytes": document.bytes,
        "raw_bytes": document.raw_bytes,
        "key": ds.key,
        "meta": ds.meta,
        "recipe": ds.recipe,
    }
    columns = [{"column": f.name, "type": str(f.type), "nullable": f.nullable} for f in ds.schema]
    if as_json:
        print_json(record | {"derived": [asdict(each) for each in derived], "columns": columns})
        return
    said = [f"{each.pipeline}, of {_versions(each.sources)}" for each in derived]
    print_record(record | ({"derived": "; ".join(said)} if said else {}))
    print_rows(columns, ("column", "type", "nullable"))


def _versions(sources: Mapping[str, str]) -> str:
    return ", ".join(f"{name}@{version[:12]}" for name, version in sources.items()) or "no dataset"


@command("head", "lake head birds", "lake head birds@v1 -n 3 --json")
def head(
    name: Name,
    rows: Annotated[int, typer.Option("-n", "--rows", min=0, help="How many rows.")] = 10,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the first rows of a dataset."""
    table = lake.open(url).dataset(name)[:rows]
    print_rows(table.to_pylist(), table.column_names, as_json=as_json)


@command("log", "lake log birds", "lake log birds -n 5 --json")
def log(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")],
    count: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Only the newest N.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a dataset's history, newest first: who did what, and what it cost."""
    entries = [asdict(entry) for entry in lake.open(url).log(name)]
    print_rows(entries[:count], LOG, as_json=as_json)
    if count is not None and len(entries) > count:
        note(f"{len(entries) - count} older entries")


def _recipe(path: Path) -> Any:
    return _json_or_text(path.read_text("utf-8"))


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
