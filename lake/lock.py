"""`lake.lock`: the versions that an experiment reads, kept in its own repository.

TOML, one table `[versions]` of quoted dataset names and version ids, sorted, so that it merges and diffs well.
The file of the working directory or its nearest ancestor counts; a first pin makes one in the working directory.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

from lake import resolve
from lake.errors import ConfigError, NotFoundError, VersionExpired
from lake.format.names import check_digest, check_name
from lake.format.values import LogEntry
from lake.refs import Refs

NAME = "lake.lock"
_HEAD = "# Versions that this project reads; `lake pin` and `lake unpin` write it. Commit it.\n\n[versions]\n"


def path() -> Path:
    """The file that counts here, or that a first pin would make."""
    here = Path.cwd()
    return next((folder / NAME for folder in (here, *here.parents) if (folder / NAME).is_file()), here / NAME)


def read() -> dict[str, str]:
    """The pinned version id of each dataset; nothing where there is no file.

    Raises:
        ConfigError: the file is not what a lock is.
    """
    file = path()
    if not file.is_file():
        return {}
    try:
        found = tomllib.loads(file.read_text("utf-8")).get("versions", {})
        if not isinstance(found, dict):
            raise TypeError(f"versions is a table of datasets' names and version ids, not {found!r}")
        return {check_name(name): check_digest(version) for name, version in found.items()}
    except (OSError, ValueError, TypeError) as error:  # TOMLDecodeError is a ValueError
        raise ConfigError(f"{file}: {error}; `lake pin` and `lake unpin` write it") from error


def find(refs: Refs, reference: object) -> tuple[str, LogEntry, LogEntry | None]:
    """A dataset's name and the entry that a reader means: explicit, else what the file says, else the head.

    Third comes the head, where the file decides and means another version.

    Raises:
        NotFoundError, VersionExpired: as `resolve.find`, naming the file where it decides.
    """
    name, selector = resolve.split(reference)
    if selector is not None or (pinned := read().get(name)) is None:
        return name, resolve.find(refs, name, selector), None
    try:
        entry, head = resolve.find(refs, name, pinned), refs.head(name)
    except (NotFoundError, VersionExpired) as error:
        said = f"{path()} says {name}@{pinned[:12]}: {error}"
        raise type(error)(f"{said}; `lake pin` or `lake unpin` changes the file") from error
    return name, entry, None if head is None or head.version == pinned else head


def pin(name: str, version: str) -> None:
    """Write that the project reads this version of the dataset."""
    _write(read() | {name: version})


def unpin(name: str) -> str | None:
    """Take the dataset out of the file; the version that it was pinned to, None if it was not."""
    pinned = read()
    version = pinned.pop(name, None)
    if version is not None:
        _write(pinned)
    return version


def _write(pinned: dict[str, str]) -> None:
    file = path()
    lines = [f"{json.dumps(name)} = {json.dumps(version)}\n" for name, version in sorted(pinned.items())]
    fresh = file.with_name(f".{NAME}.{os.getpid()}")
    fresh.write_text(_HEAD + "".join(lines), "utf-8", newline="\n")
    fresh.replace(file)
