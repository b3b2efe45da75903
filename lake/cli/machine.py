"""Commands about this machine: `cache`, `config`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

import lake
from lake import config as settings
from lake.cli.app import Json, Url, command
from lake.cli.lakes import write_down
from lake.cli.output import print_record, print_rows


@command("cache", "lake cache", "lake cache clear")
def cache(
    action: Annotated[
        Literal["status", "clear"], typer.Argument(metavar="[status|clear]", help="Show it, or empty it.")
    ] = "status",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show what this machine's cache holds, or delete all of it that nobody is using; a lake loses nothing."""
    kept = lake.open(url).cache
    freed = {"freed_bytes": kept.clear()} if action == "clear" else {}
    entries = kept.entries()
    record: dict[str, Any] = {
        "cache": str(kept.root),
        "cache_used": kept.used,
        "cache_budget": "unlimited" if kept.budget is None else kept.budget,
        "files": len(entries),
        "leased": sum(entry.leases > 0 for entry in entries),
    }
    print_record(record | freed, as_json=as_json)


@command(
    "config",
    "lake config",
    "lake config set cache_budget 60GB",
    "lake config set url s3://bucket/lake --user",
)
def config(
    action: Annotated[
        Literal["show", "set"], typer.Argument(metavar="[show|set]", help="Show settings, or write one down.")
    ] = "show",
    name: Annotated[str | None, typer.Argument(metavar="[SETTING]", help="Which one to set.")] = None,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="What to set it to.")] = None,
    user: Annotated[
        bool, typer.Option("--user", help="Write your own configuration, not the nearest lake.toml.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show every setting and the place that decides it, or write one into lake.toml."""
    if action == "set":
        if name is None or value is None:
            raise typer.BadParameter("write `lake config set SETTING VALUE`")
        path = settings.user_config() if user else settings.project_config()
        write_down(path, {name: value})
        print_record({"setting": name, "value": value, "configuration": str(path)}, as_json=as_json)
        return
    if name is not None:
        raise typer.BadParameter(f"{name!r}: `lake config` shows all settings")
    found = settings.resolve(url)
    rows = [
        {"setting": each, "value": _shown(getattr(found, each)), "set_by": source}
        for each, source in found.sources.items()
    ]
    print_rows(rows, ("setting", "value", "set_by"), as_json=as_json)


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int) else str(value)
