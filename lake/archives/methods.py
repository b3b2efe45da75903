"""The compression methods of zip members, decoded at once or in pieces. Believes no length that it is told."""

from __future__ import annotations

import bz2
import lzma
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

import zstandard

from lake.archives.content import CHUNK, Chunks
from lake.archives.zst import WINDOW

STORED, DEFLATED, BZIP2, LZMA, ZSTD_OLD, ZSTD, AES = 0, 8, 12, 14, 20, 93, 99
NAMES: Final = {
    STORED: "stored", DEFLATED: "deflated", BZIP2: "bzip2", LZMA: "lzma", ZSTD_OLD: "zstd", ZSTD: "zstd",
}  # fmt: skip
OTHERS: Final = {9: "deflate64", 95: "xz", 97: "wavpack", 98: "ppmd", AES: "encrypted"}  # which are not read
_thread = threading.local()


def decode(method: int, data: bytes, size: int) -> bytes:
    """The decoded bytes, at most one more than `size`.

    Raises one of `lake.archives.damage.DAMAGE` for what cannot be decoded.
    """
    return _DECODERS[method](data, size)


def decode_pieces(method: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The decoded bytes in pieces of at most 1 MiB."""
    if method == STORED:
        return pieces
    if method == DEFLATED:
        return _inflated_pieces(pieces)
    if method in (BZIP2, LZMA):
        return _paced(*_paced_decoder(method, pieces))
    raw: Any = Chunks(pieces)
    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(raw, read_across_frames=True)
    return iter(lambda: reader.read(CHUNK), b"")


def _inflated(data: bytes, size: int) -> bytes:
    decoder = zlib.decompressobj(-15)
    out = decoder.decompress(data, size + 1)  # one more, so that it may see the end, or be seen not to
    if len(out) <= size and not decoder.eof:
        raise EOFError("the deflate stream has no end")
    if decoder.unused_data:
        raise EOFError("something follows the deflate stream")
    return out


def _unzstd(data: bytes, size: int) -> bytes:
    decoder = getattr(_thread, "zstd", None)
    if decoder is None:
        decoder = _thread.zstd = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    if size and zstandard.frame_content_size(data) == size:
        return bytes(decoder.decompress(data, allow_extra_data=False))
    return bytes(decoder.stream_reader(data, read_across_frames=True).read(size + 1))


def _unpaced(method: int, data: bytes, size: int) -> bytes:
    decoder, pieces = _paced_decoder(method, iter([data]))
    return b"".join(_paced(decoder, pieces, size + 1))


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


_DECODERS: dict[int, Callable[[bytes, int], bytes]] = {
    DEFLATED: _inflated,
    BZIP2: partial(_unpaced, BZIP2),
    LZMA: partial(_unpaced, LZMA),
    ZSTD: _unzstd,
    ZSTD_OLD: _unzstd,
}
