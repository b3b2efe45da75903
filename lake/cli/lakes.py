"""Commands about the lake as a whole: `init`, `status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import lake
from lake import config
from lake.cli.app import Json, Url, command, exit_code
from lake.cli.output import error, print_record


@command(
    "init", "lake init ./mylake", "lake init s3://bucket/lake --cache-dir /fast/cache --cache-budget 60GB"
)
def init(
    location: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="A folder or s3://bucket/prefix.")
    ] = None,
    user: Annotated[
        bool, typer.Option("--user", help="Write your own configuration, not ./lake.toml.")
    ] = False,
    cache_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where this machine keeps what it has fetched.")
    ] = None,
    cache_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="How much of that at most: 60GB, auto or unlimited.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a lake unless it is there, and write down where it is, so that other commands find it."""
    if None not in (location, url):
        raise typer.BadParameter("the lake is named twice: as [URL] and by --url")
    location = url if location is None else location
    lk = lake.open(location, cache_dir=cache_dir, cache_budget=cache_budget)
    lk.init()
    record: dict[str, Any] = {"lake": lk.url, "configuration": None}
    settings = {"url": location, "cache_dir": cache_dir, "cache_budget": cache_budget}
    if any(settings.values()):
        path = config.user_config() if user else Path.cwd() / config.CONFIG_NAME
        write_down(path, settings)
        record["configuration"] = str(path)
    print_record(record, as_json=as_json)


@command("status", "lake status", "lake status --url s3://bucket/lake --json")
def status(url: Url = None, as_json: Json = False) -> None:
    """Show where the lake is, which setting says so, whether it answers, and how full the cache is."""
    lk = lake.open(url)
    record: dict[str, Any] = {"lake": lk.url, "set_by": lk.settings.sources["url"], "state": "ready"}
    failure = None
    try:
        record["datasets"] = len(lk.datasets())
    except lake.LakeError as refused:
        record["state"] = "no lake" if isinstance(refused, lake.NotFoundError) else "not usable"
        failure = refused
    record["cache"] = str(lk.settings.cache_dir)
    record |= {"cache_used": lk.cache.used, "cache_budget": _or_unlimited(lk.cache.budget)}
    print_record(record, as_json=as_json)
    if failure is not None:
        error(str(failure))
        raise typer.Exit(exit_code(failure))


def _or_unlimited(size: int | None) -> int | str:
    return "unlimited" if size is None else size


def write_down(path: Path, settings: dict[str, str | None]) -> None:
    """Write settings into a configuration file, whose folder relative paths are to mean the same from."""
    if path.parent != Path.cwd():
        settings = {name: _absolute(v) if name in _PATHS else v for name, v in settings.items()}
    config.write_config(path, **settings)


_PATHS = frozenset({"url", "cache_dir"})


def _absolute(location: str | None) -> str | None:
    """The location as it means the same in every folder."""
    if not location or "://" in location:
        return location
    return str(Path(location).expanduser().absolute())
