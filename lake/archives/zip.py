"""Zip archives: the directory at their end, and members by one ranged read each.

The directory is believed in nothing that can be checked: entries must lie apart, before the directory, agree
with the header in front of the data, and give exactly the bytes and the checksum that they promise.
"""

from __future__ import annotations

import stat
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

from lake.archives.content import CHUNK, ahead, coalesce, runs
from lake.archives.damage import DAMAGE, Limits, broken, clean, damage
from lake.archives.directory import Entry, decoded_name, read_directory, wide
from lake.archives.methods import AES, DEFLATED, NAMES, OTHERS, STORED, decode, decode_pieces
from lake.archives.place import Place
from lake.archives.table import Member, Table
from lake.errors import ArchiveError

_LOCAL = struct.Struct(
    "<4s4xH16x2H"
)  # of a member's header: mark, method, bytes of the name and the extra field
_SLACK = 64  # bytes that the extra field of a local header may be longer than the directory's
_GAP = 64 << 10  # between members that one request fetches together
_SPAN = 8 << 20  # bytes that one such request fetches at most
_DEFLATE_LIMIT = 1032  # what deflate can make of one byte
_HARMLESS = 1 << 20  # bytes: a smaller member is no bomb, whatever it is made of
_ENCRYPTED = 0x1 | 0x40 | 0x2000


class ZipContent:
    """The members of a zip."""

    def __init__(self, place: Place, limits: Limits) -> None:
        self.place, self._limits = place, limits
        self.table = Table()
        self._stored, self._crc = array("q"), array("I")
        self._method, self._head, self._check = array("H"), array("I"), array("I")
        self._limit, self._doubt, self._dear = array("q"), bytearray(), bytearray()
        shift, directory, pages = read_directory(place)
        for entry in pages:
            self._add(entry, shift)
        self._part(directory)

    def _add(self, entry: Entry, shift: int) -> None:
        fields, raw, extra = entry
        flags, method, crc, stored, size = fields[5], fields[6], *fields[9:12]
        system, attributes, start = fields[2], fields[17], fields[18]
        text = decoded_name(raw, flags, extra, self.place.name)
        name = clean(text.replace("\\", "/") if system == 0 else text, self.place.name)
        size, stored, start = wide(extra, size, stored, start, name, self.place.name)
        if text.endswith("/") or not name:
            return
        if stat.S_ISLNK(attributes >> 16):
            self.table.skipped["link"] += 1
            return
        if flags & _ENCRYPTED:
            method = AES
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
        name = NAMES.get(method) or OTHERS.get(method, f"method {method}")
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
            for chunk in decode_pieces(self._method[number], self._pieces(number, start)):
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
        if method not in NAMES:
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
        start, limit = self.table.start[number], self._limit[number]
        end = start + self._head[number] + _SLACK + self._stored[number]
        return start, end if end < limit else limit

    def _data(self, number: int, blob: bytes, at: int) -> int:
        """How far behind the start of its header the member's data begins."""
        try:
            mark, method, name, extra = _LOCAL.unpack_from(blob, at)
        except struct.error:
            raise self._broken(number, "the archive ends inside its header") from None
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
                data = decode(method, data, size)
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
