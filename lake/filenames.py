"""The key and the field that a file's path stands for. Pure: knows no file system."""

from __future__ import annotations

import unicodedata

COMPRESSED = frozenset({"br", "bz2", "gz", "lz4", "lzma", "xz", "z", "zst", "zstd"})
IMAGES = frozenset({
    "avif", "bmp", "gif", "heic", "heif", "jfif", "jp2", "jpe", "jpeg", "jpg", "jxl", "pbm", "pgm", "png",
    "pnm", "ppm", "tif", "tiff", "webp",
})  # fmt: skip
AUDIO = frozenset({"aac", "aif", "aiff", "au", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav", "wma"})
NO_EXTENSION = "file"


def split(path: str) -> tuple[str, str]:
    """The key and field of a `/`-separated relative path, both NFC.

    >>> split("a/x.WAV"), split("logs/day.1.tar.gz"), split("README")
    (('a/x', 'wav'), ('logs/day.1', 'tar.gz'), ('README', 'file'))
    """
    path = unicodedata.normalize("NFC", path)
    folder, slash, name = path.rpartition("/")
    stem, _, extension = name.rpartition(".")
    if not stem or not extension:
        return path, NO_EXTENSION
    extension = extension.lower()
    if extension in COMPRESSED:
        inner, _, before = stem.rpartition(".")
        if inner and before:
            stem, extension = inner, f"{before.lower()}.{extension}"
    return folder + slash + stem, extension


def hidden(path: str) -> bool:
    """Whether the file, or a folder that it lies in, is hidden.

    >>> hidden("a/.git/config"), hidden("a/b.c")
    (True, False)
    """
    return path.startswith(".") or "/." in path


def medium(field: str) -> str | None:
    """The `image` or `audio` column that a field's files belong to under `labels=True`, if any."""
    return "image" if field in IMAGES else "audio" if field in AUDIO else None


def printable(path: str) -> str:
    """The path for a message, whatever its bytes are."""
    return path.encode("utf-8", "backslashreplace").decode()
