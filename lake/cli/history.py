"""Commands about versions: `diff`, `recipe`, `tag`, `untag`, `pin`, `unpin`, `rollback`, `copy`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer

import lake
from lake.cli.app import Json, Name, Url, answers, command
from lake.cli.output import print_json, print_record, print_rows

Message = Annotated[str | None, typer.Option("--message", "-m", metavar="M", help="For the log.")]
Plain = Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")]

_TAG = ("tag", "version", "time", "author", "message")
_KINDS = ("added", "removed", "changed")


@command("diff", "lake diff birds@#3 birds", "lake diff birds@v1 birds@v2 --keys 100 --json")
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A version: birds@#3.")],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help="Another, of this dataset or of another one.")
    ],
    keys: Annotated[int, typer.Option(min=0, metavar="N", help="How many keys of each kind to show.")] = 5,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show what differs from one version to another: rows by key, columns, meta, bytes to fetch."""
    found = lake.open(url).diff(before, after)
    record: dict[str, Any] = {kind: len(getattr(found, kind)) for kind in _KINDS} | {"bytes": found.bytes}
    shown = {kind: list(islice(getattr(found, kind).keys(), keys)) for kind in _KINDS}
    if as_json:
        changes = {"schema": list(map(asdict, found.schema)), "meta": list(map(asdict, found.meta))}
        print_json(record | changes | {"keys": shown})
        return
    print_record(record)
    lines = [{"what": f"row {kind}", "name": key} for kind in _KINDS for key in shown[kind]]
    lines += [{"what": "column"} | asdict(change) for change in found.schema]
    lines += [{"what": "meta"} | asdict(change) for change in found.meta]
    if lines:
        print_rows(lines, ("what", "name", "before", "after"))


@command("recipe", "lake recipe birds", "lake recipe birds@v1 > recipe.json")
def recipe(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Print how a version came about, as it was committed: text as it is, anything else as JSON."""
    found = lake.open(url).dataset(name).recipe
    if isinstance(found, str) and not as_json:
        print(found)
    else:
        print_json(found)


@command("tag", "lake tag birds v1.0", "lake tag birds@#12 v0.9 -m 'as published'", "lake tag birds")
def tag(
    name: Name,
    label: Annotated[str | None, typer.Argument(metavar="[TAG]", help="The new name of the version.")] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="M", help="Kept with the tag.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Give a version an immutable name, which also keeps it from expiring; without TAG list the dataset's tags."""
    lk = lake.open(url)
    if label is None:
        if message is not None:
            raise typer.BadParameter("-m is kept with a tag, and no TAG is named")
        print_rows(_tags(lk, name), _TAG, as_json=as_json)
    else:
        version = lk.tag(name, label, message=message)
        print_record({"tag": label} | asdict(version), as_json=as_json)


def _tags(lk: lake.Lake, name: str) -> list[dict[str, Any]]:
    """The tags of a dataset that exists, by name, and what each says."""
    tags = lk.tags(name)
    with answers():
        said = lk.sql("from lake.tags where dataset = $1 order by tag", [name.partition("@")[0]])
        return said.to_arrow_table().to_pylist() if tags else []


@command("untag", "lake untag birds v1.0")
def untag(
    name: Plain,
    label: Annotated[str, typer.Argument(metavar="TAG", help="The tag.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Take a tag away; the version stays as long as the log, another tag or a pin names it."""
    lake.open(url).untag(name, label)
    print_record({"name": name, "untagged": label}, as_json=as_json)


@command("pin", "lake pin birds", "lake pin birds@v1.0")
def pin(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Make this project read a version, the head unless one is named: lake.lock says so, and gc spares it."""
    print_record(asdict(lake.open(url).pin(name)), as_json=as_json)


@command("unpin", "lake unpin birds", "lake unpin birds@#12")
def unpin(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Let this project read the head again, and gc have what lake.lock named; or only the latter, of a version."""
    lake.open(url).unpin(name)
    print_record({"unpinned": name}, as_json=as_json)


@command("rollback", "lake rollback birds --to '#3'", "lake rollback birds --to v1.0 -m 'bad labels'")
def rollback(
    name: Plain,
    to: Annotated[
        str, typer.Option(metavar="VERSION", help="What may follow an @: #3, an id, a date, a tag.")
    ],
    message: Message = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make an earlier version the head again; the log keeps what came since."""
    print_record(asdict(lake.open(url).rollback(name, to, message=message)), as_json=as_json)


@command("copy", "lake copy birds birds-exp", "lake copy birds@v1.0 birds-exp")
def copy(
    source: Name,
    name: Annotated[str, typer.Argument(metavar="NEW", help="The dataset to make.")],
    message: Message = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make a version the first of a new dataset; no data moves."""
    print_record(asdict(lake.open(url).copy(source, name, message=message)), as_json=as_json)
