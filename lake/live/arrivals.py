"""Decide which files have finished arriving, and which of them make a sample. Pure: no clock, no file system.

A file is told from its earlier content by its stamp. It is *quiet* once its stamp has not changed for `settle`
seconds; the files of one key are handed over together, when all that are there are quiet. What arrives for a key
that was handed over before is late: it becomes a sample of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lake import filenames

UNFINISHED = (".part", ".tmp")  # names of files that will be renamed when they are whole


class Stamp(NamedTuple):
    """What differs between two contents of a file: its size, and when it was last written."""

    size: int  # bytes
    written: int  # ns


class File(NamedTuple):
    """A file as it was when it had arrived."""

    path: str  # below the folder, "/"-separated
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Sample:
    """Files of one key that are handed over together."""

    key: str
    files: tuple[File, ...]  # by field, no two of one field
    late: bool  # files of the key were handed over before

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(file.stamp.size for file in self.files)


def ignored(path: str) -> bool:
    """Whether the file is none that arrives, by its name.

    >>> ignored("a/.x.jpg"), ignored("a/x.jpg.part"), ignored("a b/ü.jpg")
    (True, True, False)
    """
    return filenames.hidden(path) or path.lower().endswith(UNFINISHED)


class _Waiting(NamedTuple):
    stamp: Stamp
    since: float


class Arrivals:
    """The files that are arriving. Times are seconds of any clock that never goes back.

    `known`: what was handed over, or is about to be, by path; it is kept up to date here.
    """

    def __init__(self, settle: float, known: Mapping[str, Stamp]) -> None:
        self.settle = settle
        self.known = dict(known)
        self._keys = {filenames.split(path)[0] for path in known}
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, path: object) -> bool:
        return path in self._waiting

    def see(self, path: str, stamp: Stamp, now: float) -> None:
        """A file is there, with this stamp."""
        if self.known.get(path) == stamp:
            self._waiting.pop(path, None)
        elif (before := self._waiting.get(path)) is None or before.stamp != stamp:
            self._waiting[path] = _Waiting(stamp, now)

    def disturb(self, path: str, now: float) -> None:
        """A file that was seen is still being written, or was just now."""
        if path in self._waiting:
            self._waiting[path] = self._waiting[path]._replace(since=now)

    def miss(self, present: Iterable[str]) -> None:
        """Only these files are there now."""
        for path in self._waiting.keys() - present:
            del self._waiting[path]

    def lose(self, path: str) -> None:
        """A file is there no longer."""
        self._waiting.pop(path, None)

    def quiet(self, now: float) -> list[Sample]:
        """The samples that have arrived, by key: every file of theirs that is there is quiet."""
        by_key: dict[str, list[str]] = defaultdict(list)
        for path in self._waiting:
            by_key[filenames.split(path)[0]].append(path)
        edge = now - self.settle
        return [
            sample
            for key in sorted(by_key)
            if all(self._waiting[path].since <= edge for path in by_key[key])
            for sample in grouped(key, self._files(by_key[key]), late=key in self._keys)
        ]

    def single(self, path: str) -> Sample | None:
        """A file that has arrived as a sample of its own; None if it was handed over before."""
        waiting = self._waiting.get(path)
        if waiting is None:
            return None
        return Sample(filenames.split(path)[0], (File(path, waiting.stamp),), path in self.known)

    def take(self, samples: Iterable[Sample]) -> None:
        """These samples are handed over."""
        for sample in samples:
            self._keys.add(sample.key)
            for file in sample.files:
                self.known[file.path] = file.stamp
                if (waiting := self._waiting.get(file.path)) and waiting.stamp == file.stamp:
                    del self._waiting[file.path]

    def forget(self, path: str) -> None:
        """A file was not handed over after all: it had changed or gone."""
        self.known.pop(path, None)

    def _files(self, paths: list[str]) -> list[File]:
        return [File(path, self._waiting[path].stamp) for path in sorted(paths)]


def grouped(key: str, files: Iterable[File], *, late: bool) -> Iterator[Sample]:
    """Files of one key as samples: one of them, and another wherever two files are the same field."""
    rest = list(files)
    while rest:
        fields: dict[str, File] = {}
        twins = []
        for file in rest:
            field = filenames.split(file.path)[1]
            if field in fields:
                twins.append(file)
            else:
                fields[field] = file
        yield Sample(key, tuple(fields[field] for field in sorted(fields)), late)
        rest, late = twins, True


def cut(samples: Iterable[Sample], most_files: int, most_bytes: int) -> Iterator[list[Sample]]:
    """The samples in runs of at most so many files and bytes; one sample at least in each.

    >>> a, b = (Sample(key, (File(key, Stamp(3, 0)),), False) for key in "ab")
    >>> [len(run) for run in cut([a, b], 10, 5)], [len(run) for run in cut([a, b], 10, 6)]
    ([1, 1], [2])
    """
    run: list[Sample] = []
    files = size = 0
    for sample in samples:
        if run and (files + len(sample.files) > most_files or size + sample.size > most_bytes):
            yield run
            run, files, size = [], 0, 0
        run.append(sample)
        files, size = files + len(sample.files), size + sample.size
    if run:
        yield run


def present(
    samples: Iterable[Sample], stamp_of: Callable[[str], Stamp | None]
) -> tuple[list[Sample], list[File]]:
    """What is left of the samples once files that changed or went are taken out; and those files."""
    kept, lost = [], []
    for sample in samples:
        here = tuple(file for file in sample.files if stamp_of(file.path) == file.stamp)
        lost += [file for file in sample.files if file not in here]
        if here:
            kept.append(Sample(sample.key, here, sample.late))
    return kept, lost
