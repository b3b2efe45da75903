"""What a file holds: by its extension, unless its first bytes say otherwise. Pure."""

from __future__ import annotations

from typing import Final, Literal

from lake import filenames

Kind = Literal["image", "audio", "csv", "json", "text", "npy", "parquet", "bytes"]

HEAD: Final = 16  # bytes that tell

_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "bmp", "tif", "tiff", "gif", "webp"), "image"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg"), "audio"),
    **dict.fromkeys(("json", "jsonl"), "json"),
    **dict.fromkeys(("txt", "log"), "text"),
    "csv": "csv",
    "npy": "npy",
    "parquet": "parquet",
}
_MAGIC: Final[tuple[tuple[bytes, Kind], ...]] = (
    (b"\xff\xd8\xff", "image"), (b"\x89PNG\r\n\x1a\n", "image"), (b"GIF87a", "image"), (b"GIF89a", "image"),
    (b"II*\0", "image"), (b"MM\0*", "image"), (b"fLaC", "audio"), (b"OggS", "audio"), (b"ID3", "audio"),
    (b"\x93NUMPY", "npy"), (b"PAR1", "parquet"),
)  # fmt: skip
_RIFF: Final[dict[bytes, Kind]] = {b"WAVE": "audio", b"WEBP": "image"}


def kind_of(name: str, head: bytes) -> Kind:
    """The kind of the file `name` that begins with `head`.

    >>> kind_of("a.txt", b"hello"), kind_of("a.bin", b"fLaC"), kind_of("a.txt", b"GIF89a"), kind_of("a", b"?")
    ('text', 'audio', 'image', 'bytes')
    """
    if head[:4] == b"RIFF" and (riff := _RIFF.get(head[8:12])):
        return riff
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return _KINDS.get(filenames.split(name)[1], "bytes")
