"""Writing a member into a folder: below it, whatever the member is called and whatever links lie there."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from pathlib import Path

from lake.errors import ArchiveError

_WINDOWS = re.compile(r'[\\:*?"<>|\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)


def extract(name: str, chunks: Iterable[bytes], folder: str | os.PathLike[str]) -> Path:
    """Write the chunks to `name` below the folder, whole or not at all; the file's path.

    Raises:
        ArchiveError: the name would lead out of the folder.
    """
    parts = name.split("/")
    bad = next((p for p in parts if p in ("", ".", "..") or (os.name == "nt" and _WINDOWS.search(p))), None)
    if bad is not None:
        raise ArchiveError(f"{name!r} is no name for a file here: {bad!r}")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    parent = root
    for part in parts[:-1]:
        parent /= part
        if parent.is_symlink():
            raise ArchiveError(
                f"{name!r} would be written through the link {parent}, out of {root}: remove it"
            )
        parent.mkdir(exist_ok=True)
    target = parent / parts[-1]
    fresh = parent / f".{uuid.uuid4().hex}.part"
    try:
        with fresh.open("xb") as file:
            file.writelines(chunks)
        fresh.replace(target)  # a link of that name is replaced, not followed
    finally:
        fresh.unlink(missing_ok=True)
    return target
