"""Zip archives: the directory at their end, and members by one ranged read each.

The directory is believed in nothing that can be checked: entries must lie apart, before the directory, agree
with the header in front of the data, and give exactly the bytes and the checksum that they promise.
"""

from __future__ import annotations

import bz2
import lzma
import stat
import struct
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import zstandard

from lake.archives.content import CHUNK, Chunks, ahead, coalesce, runs
from lake.archives.damage import DAMAGE, Limits, broken, clean, damage
from lake.archives.place import Place
from lake.archives.table import Member, Table
from lake.archives.zst import WINDOW
from lake.errors import ArchiveError

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_TAIL = 32 << 10  # read first: the end, and of most archives the directory
_PAGE = 4 << 20  # of a directory
_SLACK = 64  # bytes that the extra field of a local header may be longer than the directory's
_GAP = 64 << 10  # between members that one request fetches together
_SPAN = 8 << 20  # bytes that one such request fetches at most
_DEFLATE_LIMIT = 1032  # what deflate can make of one byte
_HARMLESS = 1 << 20  # bytes: a smaller member is no bomb, whatever it is made of
STORED, DEFLATED, BZIP2, LZMA, ZSTD_OLD, ZSTD = 0, 8, 12, 14, 20, 93
_METHODS = {
    STORED: "stored",
    DEFLATED: "deflated",
    BZIP2: "bzip2",
    LZMA: "lzma",
    ZSTD: "zstd",
    ZSTD_OLD: "zstd",
}
_OTHERS = {9: "deflate64", 95: "xz", 97: "wavpack", 98: "ppmd"}
_ENCRYPTED, _UTF8 = 0x1 | 0x40 | 0x2000, 0x800
_AES = 99
_local = threading.local()
_Entry = tuple[tuple[Any, ...], bytes, bytes]  # of the directory: its fields, the name, the extra field


class ZipContent:
    """The members of a zip."""

    def __init__(self, place: Place, limits: Limits) -> None:
        self.place, self._limits = place, limits
        self.table = Table()
        self._stored, self._crc = array("q"), array("I")
        self._method, self._head, self._check = array("H"), array("I"), array("I")
        self._limit, self._doubt, self._dear = array("q"), bytearray(), bytearray()
        shift, directory, pages = _directory(place)
        for entry, raw, extra in pages:
            self._add(entry, raw, extra, shift)
        self._part(directory)

    def _add(self, entry: tuple[Any, ...], raw: bytes, extra: bytes, shift: int) -> None:
        flags, method, crc, stored, size = entry[5], entry[6], *entry[9:12]
        system, attributes, start = entry[2], entry[17], entry[18]
        text = _decoded(raw, flags, extra, self.place.name)
        name = clean(text.replace("\\", "/") if system == 0 else text, self.place.name)
        size, stored, start = _wide(extra, size, stored, start, name, self.place.name)
        if text.endswith("/") or not name:
            return
        if stat.S_ISLNK(attributes >> 16):
            self.table.skipped["link"] += 1
            return
        if flags & _ENCRYPTED:
            method = _AES
        self.table.add(name, start + shift, size)
        self._stored.append(stored)
        self._crc.append(crc)
        self._method.append(method)
        self._head.append(_LOCAL.size + len(raw) + len(extra))
        self._check.append(zlib.crc32(raw))
        plain = size == stored if method == STORED else method == DEFLATED and size <= _DEFLATE_LIMIT * stored
        self._doubt.append(not plain or size > _HARMLESS)
        self._dear.append(self.place.remote or (method != STORED and 4 * stored < 3 * size))

    def _part(self, directory: int) -> None:
        """Find where each entry must end: where the next begins."""
        starts, names = self.table.start, self.table.names
        order = sorted(range(len(names)), key=starts.__getitem__)
        self._limit = array("q", bytes(8 * len(names)))
        for number, following in zip(order, [*order[1:], None], strict=False):
            limit = directory if following is None else starts[following]
            least = _LOCAL.size + self._stored[number]
            if starts[number] < 0 or starts[number] + least > limit:
                other = "the directory" if following is None else repr(names[following])
                raise ArchiveError(
                    f"{names[number]!r} in {self.place.name} overlaps {other}: the archive is damaged or hostile"
                )
            self._limit[number] = limit

    def check(self, number: int) -> None:
        """Nothing, if the directory leaves no doubt that the member can be read.

        Raises:
            ArchiveError: it is encrypted, compressed in an unknown way, a bomb, or cannot be.
        """
        self._believe(number)

    def member(self, number: int) -> Member:
        """What is known of a member."""
        method = self._method[number]
        name = _METHODS.get(method) or _OTHERS.get(
            method, "encrypted" if method == _AES else f"method {method}"
        )
        return Member(self.table.names[number], self.table.size[number], self._stored[number], name)

    def dear(self, number: int) -> bool:
        """Whether it is far away, or takes some decoding: what is hardly compressed does not."""
        return bool(self._dear[number])

    def read(self, number: int) -> bytes:
        """The member's bytes, whose length and checksum are right."""
        if self._doubt[number]:
            self._admit(number)
        start, end = self._span(number)
        return self._parsed(number, self.place.read_at(start, end - start), start)

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """The same for several; neighbours in a bucket share a request."""
        if not self.place.remote:
            return [self.read(number) for number in numbers]
        found = [b""] * len(numbers)
        for number in numbers:
            self._admit(number)
        for start, end, which in coalesce([self._span(number) for number in numbers], _GAP, _SPAN):
            blob = self.place.read_at(start, end - start)
            for i in which:
                found[i] = self._parsed(numbers[i], blob, start)
        return found

    def forward(self) -> Iterator[bytes]:
        """All members; several requests at once."""
        sets = runs(self.table.size)
        found = ahead(self.read_many, sets, 4) if self.place.remote else map(self.read_many, sets)
        return chain.from_iterable(found)

    def chunks(self, number: int) -> Iterator[bytes]:
        """The member's bytes in pieces; its length and checksum are compared at the end."""
        self._believe(number)
        where = self.table.start[number]
        head = self.place.read_at(where, min(self._head[number] + _SLACK, self._limit[number] - where))
        start = where + self._data(number, head, 0)
        size, crc, done = self.table.size[number], 0, 0
        with damage(self.place.name, self.table.names[number]):
            for chunk in _decoded_pieces(self._method[number], self._pieces(number, start)):
                done += len(chunk)
                if done > size:
                    raise EOFError("longer than the archive's directory says")
                crc = zlib.crc32(chunk, crc)
                yield chunk
        self._compare(number, done, crc)

    def close(self) -> None:
        """Close the file."""
        self.place.close()

    def _admit(self, number: int) -> None:
        self._believe(number)
        size = self.table.size[number]
        if size > self._limits.member:
            self._limits.check_memory(size, self._what(number))

    def _believe(self, number: int) -> None:
        """Refuse what cannot be, cannot be read or had better not be."""
        method, size, stored = self._method[number], self.table.size[number], self._stored[number]
        if method not in _METHODS:
            self._refuse(number)
        impossible = (method == STORED and size != stored) or (
            method == DEFLATED and size > _DEFLATE_LIMIT * stored + 64
        )
        if impossible:
            raise ArchiveError(
                f"{self._what(number)} claims {size:,} bytes from {stored:,}, which is impossible: the archive is "
                "damaged or hostile"
            )
        if size > stored:
            self._limits.check(size, stored, self._what(number))

    def _refuse(self, number: int) -> None:
        kind = self.member(number).method
        if kind == "encrypted":
            raise ArchiveError(f"{self._what(number)} is encrypted: extract it with its password first")
        raise ArchiveError(f"{self._what(number)} is compressed by {kind}: pack it again, deflated or zstd")

    def _span(self, number: int) -> tuple[int, int]:
        """Where the member lies, its header included, with some room for that."""
        start = self.table.start[number]
        end = start + self._head[number] + _SLACK + self._stored[number]
        return start, min(end, self._limit[number])

    def _data(self, number: int, blob: bytes, at: int) -> int:
        """How far behind the start of its header the member's data begins."""
        try:
            local = _LOCAL.unpack_from(blob, at)
        except struct.error:
            raise self._broken(number, "the archive ends inside its header") from None
        mark, method, name, extra = local[0], local[4], local[10], local[11]
        if mark != b"PK\3\4":
            raise self._broken(number, "there is no header where the directory says")
        raw = blob[at + _LOCAL.size : at + _LOCAL.size + name]
        if zlib.crc32(raw) != self._check[number] or method != self._method[number]:
            raise self._broken(number, "its header says something else than the directory")
        begin: int = _LOCAL.size + name + extra
        if self.table.start[number] + begin + self._stored[number] > self._limit[number]:
            raise self._broken(number, "it reaches into what follows")
        return begin

    def _parsed(self, number: int, blob: bytes, start: int) -> bytes:
        """The member's bytes, out of bytes of the archive that begin at `start`."""
        at = self.table.start[number] - start
        begin = at + self._data(number, blob, at)
        stored, size = self._stored[number], self.table.size[number]
        data = blob[begin : begin + stored]
        if len(data) < stored:  # the header is longer than thought
            data = self.place.read_at(start + begin, stored)
        method = self._method[number]
        if method != STORED:
            try:
                data = _DECODERS[method](data, size)
            except DAMAGE as error:
                raise self._broken(number, str(error)) from error
        crc = zlib.crc32(data)
        if crc != self._crc[number] or len(data) != size:
            self._compare(number, len(data), crc)
        return data

    def _pieces(self, number: int, start: int) -> Iterator[bytes]:
        end = start + self._stored[number]
        for at in range(start, end, CHUNK):
            yield self.place.read_at(at, min(CHUNK, end - at))

    def _compare(self, number: int, size: int, crc: int) -> None:
        if size != self.table.size[number]:
            more = "longer" if size > self.table.size[number] else "shorter"
            raise self._broken(number, f"{more} than the archive's directory says")
        if crc != self._crc[number]:
            raise self._broken(number, f"its CRC-32 is {crc:08x}, not {self._crc[number]:08x}")

    def _broken(self, number: int, why: str) -> ArchiveError:
        return broken(self.place.name, self.table.names[number], why)

    def _what(self, number: int) -> str:
        return f"{self.table.names[number]!r} in {self.place.name}"


# --- decoding ---------------------------------------------------------------------------------


def _inflated(data: bytes, size: int) -> bytes:
    decoder = zlib.decompressobj(-15)
    out = decoder.decompress(data, size + 1)  # one more, so that it may see the end, or be seen not to
    if len(out) <= size and not decoder.eof:
        raise EOFError("the deflate stream has no end")
    if decoder.unused_data:
        raise EOFError("something follows the deflate stream")
    return out


def _unzstd(data: bytes, size: int) -> bytes:
    decoder = getattr(_local, "zstd", None)
    if decoder is None:
        decoder = _local.zstd = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    if size and zstandard.frame_content_size(data) == size:
        return bytes(decoder.decompress(data, allow_extra_data=False))
    return bytes(decoder.stream_reader(data, read_across_frames=True).read(size + 1))


def _unpaced(method: int, data: bytes, size: int) -> bytes:
    decoder, pieces = _paced_decoder(method, iter([data]))
    return b"".join(_paced(decoder, pieces, size + 1))


_DECODERS: dict[int, Callable[[bytes, int], bytes]] = {
    DEFLATED: _inflated,
    BZIP2: partial(_unpaced, BZIP2),
    LZMA: partial(_unpaced, LZMA),
    ZSTD: _unzstd,
    ZSTD_OLD: _unzstd,
}


def _decoded_pieces(method: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    if method == STORED:
        return pieces
    if method == DEFLATED:
        return _inflated_pieces(pieces)
    if method in (BZIP2, LZMA):
        return _paced(*_paced_decoder(method, pieces))
    raw: Any = Chunks(pieces)
    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(raw, read_across_frames=True)
    return iter(lambda: reader.read(CHUNK), b"")


def _inflated_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    decoder = zlib.decompressobj(-15)
    for piece in pieces:
        data = piece
        while data and not decoder.eof:
            if out := decoder.decompress(data, CHUNK):
                yield out
            data = decoder.unconsumed_tail
    while not decoder.eof:
        if not (out := decoder.decompress(b"", CHUNK)):
            raise EOFError("the deflate stream has no end")
        yield out
    if decoder.unused_data:
        raise EOFError("something follows the deflate stream")


def _paced(decoder: Any, pieces: Iterator[bytes], most: int | None = None) -> Iterator[bytes]:
    """What a decompressor of the standard library makes of the pieces, at most so many bytes, CHUNK at a time."""
    left = most
    while not decoder.eof and (left is None or left > 0):
        piece = next(pieces, b"") if decoder.needs_input else b""
        if not piece and decoder.needs_input:
            return  # without an end, which not all have: length and checksum tell
        try:
            out = decoder.decompress(piece, CHUNK if left is None else min(left, CHUNK))
        except (OSError, ValueError) as error:
            raise EOFError(str(error)) from None
        if out:
            yield out
            left = None if left is None else left - len(out)


def _paced_decoder(method: int, pieces: Iterator[bytes]) -> tuple[Any, Iterator[bytes]]:
    """A decompressor, and the pieces without what only says how it is to be made."""
    if method == BZIP2:
        return bz2.BZ2Decompressor(), pieces
    head = next(pieces, b"")
    if len(head) < 9 or head[2:4] != b"\5\0" or head[4] >= 225:
        raise EOFError("its LZMA properties are none")
    rest, lc = divmod(head[4], 9)
    pb, lp = divmod(rest, 5)
    size = int.from_bytes(head[5:9], "little")
    if size > WINDOW or lc + lp > 4:
        raise EOFError(f"its LZMA dictionary would take {size:,} bytes")
    settings = {"id": lzma.FILTER_LZMA1, "dict_size": size, "lc": lc, "lp": lp, "pb": pb}
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[settings]), chain(
        [head[9:]] if head[9:] else [], pieces
    )


# --- the directory ----------------------------------------------------------------------------


def _directory(place: Place) -> tuple[int, int, Iterator[_Entry]]:
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
) -> Iterator[_Entry]:
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


def _wide(extra: bytes, size: int, stored: int, start: int, name: str, archive: str) -> tuple[int, int, int]:
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


def _decoded(raw: bytes, flags: int, extra: bytes, archive: str) -> str:
    """A member's name: UTF-8 if it says so, else what MS-DOS would make of it."""
    if not flags & _UTF8:
        for kind, data in _extras(extra):
            if kind == 0x7075 and data[:1] == b"\1" and data[1:5] == zlib.crc32(raw).to_bytes(4, "little"):
                raw, flags = data[5:], _UTF8
    try:
        return raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise ArchiveError(f"{archive} is damaged: the name {raw!r} says it is UTF-8, and is not") from None
