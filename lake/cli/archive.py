"""The command about one archive: `archive`."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

import lake
from lake import archives, filenames
from lake.cli.app import Exit, Json, command
from lake.cli.output import error, print_json, print_record, print_rows
from lake.progress import progress

_Action = Literal["ls", "info", "cat", "verify", "recompress"]


@command(
    "archive",
    "lake archive ls photos.zip",
    "lake archive cat s3://bucket/photos.zip cat/1.jpg > 1.jpg",
    "lake archive verify photos.tar.zst --json",
    "lake archive recompress photos.tar.gz photos.tar.zst",
)
def archive(
    action: Annotated[_Action, typer.Argument(metavar="ls|info|cat|verify|recompress", help="What to do.")],
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A .zip, .tar, .tar.gz or .tar.zst, here or s3://bucket/key."),
    ],
    other: Annotated[
        str | None, typer.Argument(metavar="[MEMBER|TO]", help="cat: which member. recompress: the new file.")
    ] = None,
    as_json: Json = False,
) -> int:
    """List, describe, print from or check an archive; or pack a tar so that its members are read on their own."""
    if (other is None) == (action in ("cat", "recompress")):
        raise typer.BadParameter(f"write `lake archive {action} FILE{_OTHER.get(action, '')}`")
    if action == "verify":
        return _verify(file, as_json)
    if action == "recompress":
        with archives.recompress(file, str(other)) as made:
            print_record({"archive": made.name, "members": len(made), "bytes": made.size}, as_json=as_json)
        return Exit.DONE
    with lake.archive(file) as opened:
        if action == "ls":
            rows = [asdict(opened.member(number)) for number in range(len(opened))]
            print_rows(rows, ("name", "size", "stored", "method"), as_json=as_json)
        elif action == "info":
            _info(opened, as_json)
        else:
            _cat(opened, str(other), as_json)
    return Exit.DONE


_OTHER = {"cat": " MEMBER", "recompress": " TO"}


def _info(opened: archives.Archive, as_json: bool) -> None:
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for number, name in enumerate(opened.names):
        kind = filenames.split(name)[1]
        count[kind] += 1
        size[kind] += opened.member(number).size
    record: dict[str, Any] = {
        "archive": opened.name,
        "kind": opened.kind,
        "members": len(opened),
        "bytes": opened.size,
        "raw_bytes": size.total(),
        "skipped": opened.skipped,
    }
    types = [{"type": kind, "members": count[kind], "bytes": size[kind]} for kind, _ in count.most_common()]
    if as_json:
        print_json(record | {"types": types})
        return
    print_record(record)
    print_rows(types, ("type", "members", "bytes"))


def _cat(opened: archives.Archive, name: str, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "data": opened.read(name)})
        return
    with opened.open(name) as member:
        shutil.copyfileobj(member, sys.stdout.buffer, 1 << 20)
    sys.stdout.buffer.flush()


def _verify(file: str, as_json: bool) -> int:
    """Read every member; the exit code says whether any is damaged, the rows say which."""
    bad: list[dict[str, Any]] = []
    members = 0
    try:
        with lake.archive(file, cache_bytes=0) as opened, progress(None, f"verify {file}") as bar:
            for member, wrong in opened.verify():
                members += 1
                bar.advance(member.size)
                if wrong is not None:
                    bad.append({"name": member.name, "wrong": wrong})
    except lake.ArchiveError as damage:  # its directory, or the stream that all members lie in
        bad.append({"name": None, "wrong": str(damage)})
    if as_json:
        print_json({"archive": file, "members": members, "damaged": bad})
    else:
        print_record({"archive": file, "members": members, "damaged": len(bad)})
        for each in bad:
            error(each["wrong"])
    return Exit.DAMAGED if bad else Exit.DONE
