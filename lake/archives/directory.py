"""The directory at the end of a zip: found by reading a little of the end, then read page by page.

It is only taken apart here; `lake.archives.zip` decides what of it to believe.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

from lake.archives.damage import broken
from lake.archives.place import Place
from lake.errors import ArchiveError

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_TAIL = 32 << 10  # read first: the end, and of most archives the directory
_PAGE = 4 << 20  # of a directory
_UTF8 = 0x800
Entry = tuple[tuple[Any, ...], bytes, bytes]  # of the directory: its fields, the name, the extra field


def read_directory(place: Place) -> tuple[int, int, Iterator[Entry]]:
    """How far all offsets are off, where the directory begins, and its entries."""
    tail_start = max(0, place.size - _TAIL)
    tail = place.read_at(tail_start, place.size - tail_start)
    at = _find_end(tail)
    if at < 0 and tail_start:  # a long comment
        tail_start = max(0, place.size - _END.size - 0xFFFF)
        tail = place.read_at(tail_start, place.size - tail_start)
        at = _find_end(tail)
    if at < 0:
        raise ArchiveError(f"{place.name} is no zip, or was cut short: it has no directory at its end")
    _, disk, other, _, count, size, offset, _ = _END.unpack_from(tail, at)
    end = tail_start + at
    wide = _end64(place, tail, tail_start, end)
    if wide is not None:
        end, disk, other, count, size, offset = wide
    if disk or other:
        raise ArchiveError(f"{place.name} is one of several volumes: join them first")
    begin = end - size
    if begin < 0 or offset > begin or count * _ENTRY.size > size:
        raise ArchiveError(f"{place.name} is damaged: its directory of {size:,} bytes lies outside of it")
    known = (tail_start, tail) if begin >= tail_start else None
    return begin - offset, begin, _entries(place, begin, end, count, known)


def _find_end(tail: bytes) -> int:
    """Where the end record is in the tail of a file; one whose comment fills the rest is preferred."""
    found = -1
    at = tail.rfind(b"PK\5\6")
    while at >= 0:
        if at + _END.size <= len(tail):
            length = at + _END.size + _END.unpack_from(tail, at)[7]
            if length == len(tail):
                return at
            found = at if found < 0 and length < len(tail) else found
        at = tail.rfind(b"PK\5\6", 0, at)
    return found


def _end64(
    place: Place, tail: bytes, tail_start: int, end: int
) -> tuple[int, int, int, int, int, int] | None:
    """The zip64 end record in front of the end record, where there is one."""
    at = end - _LOCATOR.size
    if at < tail_start or not tail.startswith(b"PK\6\7", at - tail_start):
        return None
    _, _, claimed, _ = _LOCATOR.unpack_from(tail, at - tail_start)
    for where in (at - _END64.size, claimed):
        if 0 <= where <= at - _END64.size:
            record = _END64.unpack(place.read_at(where, _END64.size))
            if record[0] == b"PK\6\6":
                return where, record[4], record[5], record[7], record[8], record[9]
    raise ArchiveError(f"{place.name} is damaged: its zip64 end record is not where it should be")


def _entries(
    place: Place, begin: int, end: int, count: int, known: tuple[int, bytes] | None
) -> Iterator[Entry]:
    """The directory's entries, read page by page."""
    if known is None:
        page, at, position = b"", 0, begin
    else:
        page, at, position = known[1][: end - known[0]], begin - known[0], end
    for number in range(count):
        if len(page) - at < _ENTRY.size + 3 * 0xFFFF and position < end:
            more = place.read_at(position, min(_PAGE, end - position))
            page, at, position = page[at:] + more, 0, position + len(more)
        if len(page) - at < _ENTRY.size or not page.startswith(b"PK\1\2", at):
            raise ArchiveError(
                f"{place.name} is damaged: its directory breaks off at entry {number:,} of {count:,}"
            )
        entry = _ENTRY.unpack_from(page, at)
        name_end = at + _ENTRY.size + entry[12]
        extra_end = name_end + entry[13]
        following = extra_end + entry[14]
        if following > len(page):
            raise ArchiveError(f"{place.name} is damaged: entry {number:,} of its directory has no end")
        yield entry, page[at + _ENTRY.size : name_end], page[name_end:extra_end]
        at = following
    if at != len(page) or position != end:
        raise ArchiveError(f"{place.name} is damaged: its directory holds more than its {count:,} entries")


def _extras(extra: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        yield kind, extra[at + 4 : at + 4 + length]
        at += 4 + length


def wide(extra: bytes, size: int, stored: int, start: int, name: str, archive: str) -> tuple[int, int, int]:
    """Size, stored size and offset, those that need 64 bits from the extra field."""
    if 0xFFFFFFFF not in (size, stored, start):
        return size, stored, start
    data = next((data for kind, data in _extras(extra) if kind == 1), b"")
    values, at = [size, stored, start], 0
    for i, value in enumerate(values):
        if value == 0xFFFFFFFF and len(data) >= at + 8:
            (values[i],) = struct.unpack_from("<Q", data, at)
            at += 8
            if values[i] >> 63:
                raise broken(archive, name, "its sizes are impossible")
    return values[0], values[1], values[2]


def decoded_name(raw: bytes, flags: int, extra: bytes, archive: str) -> str:
    """A member's name: UTF-8 if it says so, else what MS-DOS would make of it."""
    if not flags & _UTF8:
        for kind, data in _extras(extra):
            if kind == 0x7075 and data[:1] == b"\1" and data[1:5] == zlib.crc32(raw).to_bytes(4, "little"):
                raw, flags = data[5:], _UTF8
    try:
        return raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise ArchiveError(f"{archive} is damaged: the name {raw!r} says it is UTF-8, and is not") from None
