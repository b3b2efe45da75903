"""Packing a tar again as zstd frames that begin and end with members, so that each is read on its own."""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

from lake.archives.damage import damage
from lake.archives.reader import Archive, archive
from lake.archives.stream import decoded
from lake.archives.tar import TarContent
from lake.asked import whole
from lake.errors import ArchiveError

FRAME = 256 << 10  # decoded bytes of a frame, at most
_HEADER = 512  # bytes of a tar in front of a member's data


def recompress(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    level: int = 3,
    frame_bytes: int = FRAME,
    **access: Any,
) -> Archive:
    """Write the tar `source`, compressed or not, to `target` as a .tar.zst of small frames, and open that.

    The tar inside stays the same, byte for byte, and any zstd unpacks it. `access`: as for `lake.archive`.

    Raises:
        ArchiveError: the source is no tar, or damaged. FileExistsError: there is a `target`.
    """
    level, frame_bytes = whole("level", level), whole("frame_bytes", frame_bytes, least=1)
    out = Path(target)
    if not out.name.lower().endswith((".tar.zst", ".tzst")):
        raise ValueError(f"what is written to {out} is a .tar.zst: call it that")
    if out.exists():
        raise FileExistsError(f"{out} exists: remove it, or choose another name")
    fresh = out.with_name(f".{out.name}.{uuid.uuid4().hex}.part")
    try:
        with archive(source, cache_bytes=0, **access) as opened, fresh.open("xb") as file:
            content = opened._content
            if not isinstance(content, TarContent):
                raise ArchiveError(
                    f"{opened.name} is a {opened.kind}: its members can be read on their own already"
                )
            place, codec = content.place, opened.kind.removeprefix("tar").removeprefix(".")
            starts = sorted({start - _HEADER for start in content.table.start})
            with damage(place.name):
                file.writelines(_frames(decoded(place, codec), starts, frame_bytes, level))
        out.hardlink_to(fresh)  # which fails where somebody else was faster
    finally:
        fresh.unlink(missing_ok=True)
    return archive(out, **access)


def _frames(stream: Any, starts: Sequence[int], most: int, level: int) -> Iterator[bytes]:
    """The stream as frames of at most `most` bytes, cut at the last start that allows, if any does."""
    packer = zstandard.ZstdCompressor(level=level, write_checksum=True)
    begin, data = 0, b""
    while True:
        while len(data) < most and (more := stream.read(most - len(data))):
            data += more
        if not data:
            return
        end = begin + len(data)
        if len(data) == most:
            last = bisect_right(starts, end) - 1
            if last >= 0 and starts[last] > begin:
                end = starts[last]
        yield packer.compress(data[: end - begin])
        data, begin = data[end - begin :], end
