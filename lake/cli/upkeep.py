"""Commands that look after a lake: `rm`, `expire`, `gc`, `verify`, `repair`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

import lake
from lake.cli.app import Exit, Json, Url, command
from lake.cli.output import note, print_json, print_record, print_rows

Plain = Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this nothing changes.")]

_GOING = ("seq", "operation", "rows_added", "version", "author", "time", "message")
_PROBLEM = ("kind", "key", "versions")


@command("rm", "lake rm birds-exp", "lake rm birds --version '#3' --yes")
def rm(
    name: Plain,
    version: Annotated[
        str | None, typer.Option(metavar="V", help="Only this version: what may follow an @.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="M", help="For the log.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove a dataset, or give up one version; its bytes go with later runs of gc."""
    lk = lake.open(url)
    if version is None:
        what = f"{name} ({len(lk.dataset(f'{name}@head')):,} rows, {len(lk.versions(name)):,} versions)"
    else:
        what = f"{name}@{version}"
        lk.expire(name, version=version)  # may it go at all?
    _confirm(f"Remove {what} from {lk.url}?", yes)
    if version is None:
        lk.remove(name, message=message)
        print_record({"removed": name}, as_json=as_json)
    else:
        gone = lk.expire(name, version=version, dry_run=False)
        print_record({"removed": name, "version": gone[0].version, "entries": len(gone)}, as_json=as_json)


@command("expire", "lake expire birds --keep 10 --older-than 30d", "lake expire birds --keep 10 --yes")
def expire(
    name: Plain,
    keep: Annotated[int | None, typer.Option(min=1, metavar="N", help="The N newest versions stay.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="D", help="Younger ones stay: 30d, 12h.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(metavar="V", help="This one goes: what may follow an @.")
    ] = None,
    yes: Yes = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show which versions the rules give up, or give them up; head, tags and pins stay."""
    going = lake.open(url).expire(name, keep=keep, older_than=older_than, version=version, dry_run=not yes)
    print_rows([asdict(entry) for entry in going], _GOING, as_json=as_json)
    if going and not yes:
        note(f"{len(going):,} would be expired; --yes does it")


@command("gc", "lake gc", "lake gc --yes", "lake gc --no-writers --grace 0s --yes")
def gc(
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where over 30 % of all bytes would go.")
    ] = False,
    no_writers: Annotated[
        bool, typer.Option("--no-writers", help="Promise that nobody writes meanwhile.")
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option(metavar="D", help="Wait so long, not as the lake says; shorter with --no-writers."),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Collect what no version needs: what one run lists, a run at least one grace later deletes."""
    report = lake.open(url).gc(dry_run=not yes, force=force, no_writers=no_writers, grace=grace)
    record: dict[str, Any] = asdict(report)
    foreign = record.pop("foreign")
    if as_json:
        print_json(record | {"foreign": foreign})
    else:
        print_record(
            {name: value for name, value in record.items() if name not in ("dry_run", "needs_force")}
        )
    for key in foreign:
        note(f"not lake's, left alone: {key}")
    if not yes and (report.condemned or report.deleted):
        force_too = " --force" if report.needs_force else ""
        note(f"nothing was done; --yes{force_too} does it")
    if report.failed:
        raise typer.Exit(Exit.TRY_AGAIN)


@command("verify", "lake verify", "lake verify birds --level full --json")
def verify(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this dataset.")] = None,
    level: Annotated[
        Literal["refs", "exists", "sample", "full"],
        typer.Option(help="refs: documents; exists: parts are there; sample: read some; full: read all."),
    ] = "exists",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Look for missing, truncated and altered objects, and say which versions they hurt."""
    report = lake.open(url).verify(level, name)
    if as_json:
        print_json(asdict(report))
    else:
        print_record({"problems": len(report.problems), "objects": report.objects, "bytes": report.bytes})
        _print_problems(report.problems)
    if not report.ok:
        raise typer.Exit(Exit.DAMAGED)


@command("repair", "lake repair birds --from s3://mirror/lake --yes", "lake repair birds --drop --yes")
def repair(
    name: Plain,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Another copy of the lake.")
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Give up what is lost, in a new version without those shards.")
    ] = False,
    yes: Yes = False,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="M", help="For the log.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Fetch sound copies of what is damaged, from another copy of the lake or the cache; or give up what is lost."""
    done = lake.open(url).repair(name, source=source, drop=drop, dry_run=not yes, message=message)
    if as_json:
        print_json(asdict(done))
    else:
        version = done.entry.version if done.entry else None
        numbers = {"fetched": len(done.fetched), "lost": len(done.lost), "rows_lost": done.rows_lost}
        print_record(numbers | {"version": version})
        _print_problems(done.lost)
    if not yes and (done.fetched or done.rows_lost):
        note("nothing was done; --yes does it")
    if done.lost and done.entry is None:
        raise typer.Exit(Exit.DAMAGED)


def _print_problems(problems: Sequence[Any]) -> None:
    if problems:
        rows = [
            {"kind": one.kind, "key": one.key, "versions": " ".join(map(_short, one.versions))}
            for one in problems
        ]
        print_rows(rows, _PROBLEM)


def _short(version: str) -> str:
    """A version as people name it: as many digits as tell it from others, mostly."""
    name, _, digits = version.partition("@")
    return f"{name}@{digits[:12]}"


def _confirm(question: str, yes: bool) -> None:
    """Go on only if told to."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Nobody is there to ask: --yes does it")
    if not typer.confirm(question, err=True):
        note("nothing was removed")
        raise typer.Exit(Exit.FAILED)
