"""The command about a folder in which files keep arriving: `watch`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import lake
from lake.cli.app import Json, Url, command
from lake.cli.output import note, print_record


@command(
    "watch",
    "lake watch camera/ --dataset cam",
    "lake watch camera/ --dataset cam --every 64MB --delete",
)
def watch(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where files arrive.")],
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="The dataset they are appended to; made if it does not exist.")
    ],
    every: Annotated[
        str, typer.Option(metavar="HOW", help="A commit after so long, or so much: 10s, 64MB.")
    ] = "10s",
    settle: Annotated[
        str, typer.Option(metavar="D", help="A file has arrived when it has not changed for so long.")
    ] = "2s",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete files once the commit that holds them is durable.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="First try the batches again that were set aside after failing.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Append files to a dataset as they arrive in a folder, each once, until Ctrl-C; then say how many."""
    from lake import live

    if retry and (released := live.release(folder)):
        note(f"{released} batches are tried again")
    lk = lake.open(url)
    note(f"watching {folder} for {dataset} in {lk.url}; Ctrl-C ends it")
    seen = live.ingest(folder, lk, dataset, every=every, delete=delete, settle=settle)
    print_record(asdict(seen), as_json=as_json)
