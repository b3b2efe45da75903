"""A batch of files: what came from a folder at once, as bytes, samples, images, recordings, tables and texts."""

from __future__ import annotations

import importlib
import io
import json as _json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from lake import codecs, filenames
from lake.archives import Archive, archive
from lake.live.arrivals import File, Sample, Stamp, grouped
from lake.live.kinds import HEAD, Kind, kind_of
from lake.pipeline import Pipeline, from_iterable

if TYPE_CHECKING:
    import PIL.Image

Array = np.ndarray[Any, np.dtype[np.float32]]
T = TypeVar("T")


class Picture(NamedTuple):
    """An image file, decoded by Pillow and turned as the camera was held."""

    name: str
    image: PIL.Image.Image


class Waveform(NamedTuple):
    """A recording: float32 [channels, T] within -1 and 1, and its sample rate."""

    name: str
    samples: Array
    rate: int


class Mfcc(NamedTuple):
    """A recording's mel-frequency cepstral coefficients: float32 [n_mfcc, T], of its channels' mean."""

    name: str
    mfcc: Array
    rate: int  # of the recording


class Table(NamedTuple):
    """A CSV or Parquet file with typed columns."""

    name: str
    table: pa.Table


class Record(NamedTuple):
    """A JSON value: a document, an element of one that is a list, or a line of JSON lines."""

    name: str
    value: Any


class Text(NamedTuple):
    """A text file."""

    name: str
    lines: list[str]
    line_count: int
    word_count: int


class Bad(NamedTuple):
    """A file that could not be decoded, and why."""

    name: str
    why: str


class FileChanged(OSError):
    """A file of a batch was written to or went away since; it comes again in a later batch, if it is there."""


class Source(Protocol):
    """Where the files of a batch lie."""

    def stream(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """The file, to be read forward; that it is what had arrived is certain when this ends."""


class Packed:
    """Files of an archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def stream(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """The member."""
        return self._archive.open(name)


class Folder:
    """Files of a folder, as long as they are what they were when they had arrived."""

    def __init__(self, root: Path, stamps: Mapping[str, Stamp]) -> None:
        self._root, self._stamps = root, stamps

    @contextmanager
    def stream(self, name: str) -> Iterator[IO[bytes]]:
        """The file.

        Raises:
            FileChanged: it is not, or no longer, what had arrived.
        """
        path = self._root / name
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise FileChanged(f"{path} is gone") from None
        with file:
            self._check(path, name, file)
            yield file
            self._check(path, name, file)

    def _check(self, path: Path, name: str, file: IO[bytes]) -> None:
        status = os.fstat(file.fileno())
        if Stamp(status.st_size, status.st_mtime_ns) != self._stamps[name]:
            raise FileChanged(f"{path} was written to since it had arrived")


class Batch:
    """Files that came at once. Everything is read when it is asked for, one file at a time.

    `id` is the same whenever the batch is handed over, after a restart too. `names`: its files, below the folder.
    `late`: those whose key, or whose name, came in an earlier batch already. `errors`: files that a method of this
    batch could not decode; the others are not lost by them.
    """

    def __init__(self, id: str, source: Source, samples: Sequence[Sample]) -> None:  # noqa: A002 - the user's word
        self.id = id
        self.groups = tuple(samples)
        self.names = tuple(file.path for sample in samples for file in sample.files)
        self.late = tuple(file.path for sample in samples if sample.late for file in sample.files)
        self.errors: list[Bad] = []
        self._source = source

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Batch:
        """A batch that `archive=` kept, or any zip, tar or folder as if it had been one; its name is the id."""
        opened = archive(path, cache_bytes=0)
        files = [
            File(name, Stamp(opened.member(number).size, 0))
            for number, name in enumerate(opened.names)
            if not filenames.hidden(name)
        ]
        keys: dict[str, list[File]] = {}
        for file in files:
            keys.setdefault(filenames.split(file.path)[0], []).append(file)
        samples = [each for key, found in keys.items() for each in grouped(key, found, late=False)]
        return cls(Path(path).stem, Packed(opened), samples)

    def __repr__(self) -> str:
        return f"<Batch {self.id}, {len(self.names):,} files>"

    def __len__(self) -> int:
        return len(self.names)

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            FileChanged: they are not what had arrived; without it having been caught, the batch comes again.
        """
        with self._source.stream(name) as file:
            return file.read()

    def stream(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """A file, to be read forward in bounded memory."""
        return self._source.stream(name)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What each file holds, by its extension and its first bytes."""
        found = {}
        for name in self.names:
            with self._source.stream(name) as file:
                found[name] = kind_of(name, file.read(HEAD))
        return found

    def summary(self) -> dict[str, Any]:
        """What there is: `id`, `files`, `samples`, `bytes`, `kinds` (how many of each), `late` and `errors`."""
        return {
            "id": self.id,
            "files": len(self.names),
            "samples": len(self.groups),
            "bytes": sum(sample.size for sample in self.groups),
            "kinds": dict(Counter(self.kinds.values())),
            "late": list(self.late),
            "errors": [bad._asdict() for bad in self.errors],
        }

    def samples(self) -> Pipeline:
        """The files as samples `(key, {field: bytes})`, grouped as `commit` does it; absent fields are None."""
        return from_iterable(_Samples(self))

    def images(self, mode: str | None = "RGB") -> Iterator[Picture]:
        """Every image, in one of Pillow's modes; None keeps the file's."""
        return self._decoded("image", lambda name, data: [Picture(name, codecs.picture(data, mode))])

    def audio(self, n_mfcc: int = 20, *, raw: bool = False) -> Iterator[Waveform | Mfcc]:
        """Every recording: as coefficients, computed by librosa, or `raw` as its waveform."""

        def decode(name: str, data: bytes) -> list[Waveform | Mfcc]:
            samples, rate = codecs.audio(data)
            if raw:
                return [Waveform(name, samples, rate)]
            librosa = _needed("librosa", "audio")
            mfcc = librosa.feature.mfcc(y=samples.mean(axis=0), sr=rate, n_mfcc=n_mfcc)
            return [Mfcc(name, np.asarray(mfcc, np.float32), rate)]

        return self._decoded("audio", decode)

    def tabular(self) -> Iterator[Table]:
        """Every CSV and Parquet file, columns typed, headers without blanks, byte order marks and duplicates."""
        yield from self._decoded("csv", lambda name, data: [Table(name, _csv(data))])
        yield from self._decoded("parquet", lambda name, data: [Table(name, _parquet(data))])

    def json(self, *, flatten: bool = False) -> Iterator[Record]:
        """Every JSON record; `flatten`: as one dict without dicts or lists in it, `{"a": {"b": 1}}` as `a.b`."""

        def decode(name: str, data: bytes) -> list[Record]:
            values = _json_values(name, codecs.text(data))
            return [Record(name, flat(value) if flatten else value) for value in values]

        return self._decoded("json", decode)

    def text(self) -> Iterator[Text]:
        """Every text, UTF-8 unless a byte order mark says UTF-16."""
        return self._decoded("text", lambda name, data: [_text(name, data)])

    def _decoded(self, kind: Kind, decode: Callable[[str, bytes], list[T]]) -> Iterator[T]:
        """What is made of each file of a kind; one that cannot be decoded is listed in `errors`."""
        for name in self.names:
            if self.kinds[name] != kind:
                continue
            data = self.read(name)
            try:
                found = decode(name, data)
            except ImportError:
                raise
            except Exception as error:
                self._complain(name, error)
            else:
                yield from found

    def _complain(self, name: str, error: Exception) -> None:
        if all(bad.name != name for bad in self.errors):
            self.errors.append(Bad(name, str(error) or type(error).__name__))


class _Samples(Sequence[tuple[str, dict[str, bytes | None]]]):
    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._fields = tuple(sorted({filenames.split(name)[1] for name in batch.names}))

    def __len__(self) -> int:
        return len(self._batch.groups)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        sample = self._batch.groups[number]
        values: dict[str, bytes | None] = dict.fromkeys(self._fields)
        for file in sample.files:
            values[filenames.split(file.path)[1]] = self._batch.read(file.path)
        return sample.key, values


# --- decoding -----------------------------------------------------------------------------------


def flat(value: Any) -> dict[str, Any]:
    """The leaves of a JSON value by their paths.

    >>> flat({"a": {"b": 1}, "x": [7, {"y": None}], "e": []}), flat(3)
    ({'a.b': 1, 'x.0': 7, 'x.1.y': None, 'e': []}, {'value': 3})
    """
    if not isinstance(value, dict | list):
        return {"value": value}
    found: dict[str, Any] = {}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in pairs:
        if isinstance(below, dict | list) and below:
            found.update({f"{key}.{path}": leaf for path, leaf in flat(below).items()})
        else:
            found[str(key)] = below
    return found


def _json_values(name: str, text: str) -> list[Any]:
    if filenames.split(name)[1] == "jsonl":
        return [_json.loads(line) for line in text.splitlines() if line.strip()]
    value = _json.loads(text)
    return value if isinstance(value, list) else [value]


def _csv(data: bytes) -> pa.Table:
    text = codecs.text(data)
    first = text.lstrip("\r\n").partition("\n")[0]
    if not first.strip():
        return pa.table({})
    delimiter = max(",;\t|", key=first.count)
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    table = pyarrow.csv.read_csv(io.BytesIO(text.encode()), parse_options=parse)
    return table.rename_columns(_clean(table.column_names))


def _parquet(data: bytes) -> pa.Table:
    table = pyarrow.parquet.read_table(pa.BufferReader(data))
    return table.rename_columns(_clean(table.column_names))


def _clean(names: Sequence[str]) -> list[str]:
    """Names without blanks around them, none of them empty or there twice.

    >>> _clean([" id", "", "x", "x"])
    ['id', 'column_2', 'x', 'x_2']
    """
    found: list[str] = []
    for number, name in enumerate(names, 1):
        fresh = base = name.strip() or f"column_{number}"
        again = 2
        while fresh in found:
            fresh, again = f"{base}_{again}", again + 1
        found.append(fresh)
    return found


def _text(name: str, data: bytes) -> Text:
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = data.decode("utf-16") if wide else codecs.text(data)
    lines = text.splitlines()
    return Text(name, lines, len(lines), len(text.split()))


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {module.partition('.')[0]}: pip install 'lakeshard[{extra}]'", name=module
        ) from error
