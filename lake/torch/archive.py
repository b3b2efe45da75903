"""The members of an archive as a map-style data set, for a `DataLoader`."""

from __future__ import annotations

import fnmatch
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from lake import archives, codecs, filenames
from lake.errors import ArchiveError

Kind = Literal["auto", "image", "audio", "text", "json", "csv"]
Decode = Kind | Callable[[str, bytes], Any] | None

_SIDE = 16_384  # pixels of an image's height or width, at most
_KINDS: dict[str, str] = {
    **dict.fromkeys(filenames.IMAGES, "image"),
    **dict.fromkeys(filenames.AUDIO, "audio"),
    **dict.fromkeys(("txt", "log", "md"), "text"),
    "json": "json",
    "csv": "csv",
    "npy": "npy",
}


class ArchiveDataset(Dataset[Any]):  # type: ignore[misc]  # mypy does not look into torch
    """Members of an archive, decoded: `DataLoader(ArchiveDataset("x.zip", decode="image"), shuffle=True)`.

    Hidden members are left out. Works with any number of workers, however they are started; they share the
    archive's memory of what was read before.

    Args:
        archive: a `lake.archive`, or its path or URL.
        decode: what an item is. None: the member's bytes; "image": uint8 [3, height, width], RGB; "audio":
            float32 [channels, frames] and the sample rate; "text", "json", "csv": Python values; "auto": one of
            these by the member's extension, else bytes; a function of (name, bytes): what it returns.
        transform: applied to what was decoded.
        target_size: (height, width) to which images are scaled, so that they stack.
        include: a glob, or several, of the names to take; `*` matches any characters, `/` too.
        target: a function of the name; items are then `(member, target)`.

    Raises:
        ValueError: nothing is left, or there is no such `decode`.
    """

    def __init__(
        self,
        archive: archives.Archive | str | os.PathLike[str],
        *,
        decode: Decode = None,
        transform: Callable[[Any], Any] | None = None,
        target_size: tuple[int, int] | None = None,
        include: str | Iterable[str] | None = None,
        target: Callable[[str], Any] | None = None,
    ) -> None:
        if not (decode is None or callable(decode) or decode in ("auto", *_DECODERS)):
            raise ValueError(
                f"no decode={decode!r}: 'auto', {', '.join(map(repr, _DECODERS))}, a function or None"
            )
        _check_size(target_size)
        self.archive = archive if isinstance(archive, archives.Archive) else archives.archive(archive)
        globs = [include] if isinstance(include, str) else None if include is None else [*include]
        self._numbers = [n for n, name in enumerate(self.archive.names) if _wanted(name, globs)]
        if not self._numbers:
            raise ValueError(
                f"no member of {self.archive.name} is left of {len(self.archive):,}"
                + (f" by include={include!r}" if globs is not None else "")
            )
        self._decode, self._transform, self._size, self._target = decode, transform, target_size, target

    @property
    def names(self) -> list[str]:
        """The members' names, by index."""
        return [self.archive.names[number] for number in self._numbers]

    def __repr__(self) -> str:
        return f"ArchiveDataset({self.archive.name!r}, {len(self):,} of {len(self.archive):,} members)"

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        number = self._numbers[operator.index(index)]
        return self._item(self.archive.names[number], self.archive[number])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several items; what lies close together is read at once. A `DataLoader` asks this way."""
        numbers = [self._numbers[operator.index(index)] for index in indices]
        data = self.archive.read_many(numbers)
        return [self._item(self.archive.names[n], each) for n, each in zip(numbers, data, strict=True)]

    def _item(self, name: str, data: bytes) -> Any:
        try:
            value = self._transformed(name, data)
            return value if self._target is None else (value, self._target(name))
        except Exception as error:
            error.add_note(f"in member {name!r} of {self.archive.name}")
            raise

    def _transformed(self, name: str, data: bytes) -> Any:
        value = self._decoded(name, data)
        return value if self._transform is None else self._transform(value)

    def _decoded(self, name: str, data: bytes) -> Any:
        if callable(self._decode):
            return self._decode(name, data)
        kind = _KINDS.get(filenames.split(name)[1]) if self._decode == "auto" else self._decode
        if kind is None:
            return data
        try:
            return _DECODERS[kind](data, self._size)
        except ImportError:
            raise
        except Exception as error:
            raise ArchiveError(
                f"{name!r} in {self.archive.name} cannot be decoded as {kind}: {error}"
            ) from error


def _check_size(size: Any) -> None:
    if size is None:
        return
    sides = size if isinstance(size, tuple | list) else ()
    if len(sides) != 2 or not all(isinstance(side, int) and 0 < side <= _SIDE for side in sides):
        raise ValueError(f"target_size is (height, width), whole pixels from 1 to {_SIDE:,}, not {size!r}")


def _wanted(name: str, globs: list[str] | None) -> bool:
    if filenames.hidden(name):
        return False
    return globs is None or any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _image(data: bytes, size: tuple[int, int] | None) -> torch.Tensor:
    pixels = codecs.image(data)
    if size is not None and pixels.shape[:2] != tuple(size):
        from PIL import Image

        height, width = size
        scaled = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        pixels = np.array(scaled)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _audio(data: bytes, size: tuple[int, int] | None) -> tuple[torch.Tensor, int]:
    frames, rate = codecs.audio(data)
    return torch.from_numpy(frames), rate


_DECODERS: dict[str, Callable[[bytes, tuple[int, int] | None], Any]] = {
    "image": _image,
    "audio": _audio,
    "text": lambda data, _: codecs.text(data),
    "json": lambda data, _: codecs.json(data),
    "csv": lambda data, _: codecs.csv(data),
    "npy": lambda data, _: torch.from_numpy(codecs.npy(data)),
}
