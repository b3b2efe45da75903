"""A batch as a zip of its own: whole under its name, or not there."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

from lake import _os
from lake.live.batch import Batch

_PLAIN = ("csv", "json", "text")  # kinds that are worth compressing


def keep(batch: Batch, folder: Path) -> Path:
    """Write the batch into the folder as `<id>.zip`; the path. What an earlier attempt wrote is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{batch.id}.zip"
    fresh = path.with_name(f".{path.name}.part")
    with fresh.open("wb") as file:
        with zipfile.ZipFile(file, "w") as packed:
            for name in batch.names:
                info = zipfile.ZipInfo(name)
                compressed = batch.kinds[name] in _PLAIN
                info.compress_type = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
                with batch.stream(name) as source, packed.open(info, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        file.flush()
        _os.fsync(file.fileno())
    fresh.replace(path)
    _os.fsync_dir(os.fspath(folder))
    return path
