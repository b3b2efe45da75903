"""Read what a lake says of itself: its description, logs, heads, versions and manifests.

Everything here reads and nothing writes. Immutable documents come through a cache when there is one;
log entries and the head hint are always asked of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lake.config import parse_duration
from lake.errors import FormatError, IntegrityError, NotFoundError
from lake.format import documents, log, names, version
from lake.format.manifest import Manifest
from lake.format.names import Keys
from lake.format.segment import decode_segment
from lake.format.values import LogEntry, VersionDocument
from lake.stores.base import Object, Store

_FETCHERS = 8  # documents asked for at once
_SEGMENTS = 32  # whose bytes a manifest keeps, where a cache or a folder has them: a megabyte or two each


T = TypeVar("T")


class BlobCache(Protocol):
    """Where immutable objects are kept between calls (`lake.cache.Cache` is one)."""

    def blob(self, digest: str, fetch: Callable[[], bytes]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LakeInfo:
    """`lake.json`: made once, when the lake is created."""

    id: str
    created: str
    grace: float  # seconds


@dataclass(frozen=True, slots=True)
class Base:
    """The head that a change starts from. A dataset that does not exist has no `document`."""

    seq: int  # of the newest log entry, 0 if there is none
    born: int  # first seq of the dataset's present (or next) life
    entry: LogEntry | None
    document: VersionDocument | None

    @property
    def version(self) -> str | None:
        """The id of the head's version, None where the dataset does not exist."""
        return self.entry.version if self.entry else None


class Refs:
    """A lake's documents, read from `store`; `cache` keeps the immutable ones."""

    def __init__(self, store: Store, cache: BlobCache | None = None) -> None:
        self.store = store
        self.cache = cache
        self._info: LakeInfo | None = None
        self._versions: dict[str, VersionDocument] = {}
        self._lock = threading.Lock()

    # --- the lake -----------------------------------------------------------------------------

    def info(self) -> LakeInfo:
        """The lake's description, read once.

        Raises:
            NotFoundError: there is no lake at this URL.
        """
        if self._info is None:
            try:
                data = self.store.get(names.LAKE)
            except NotFoundError as error:
                if self.store.local_path(names.LAKE) is None and not self.store.exists():
                    raise  # nothing can be made in a bucket that is not there
                raise NotFoundError(
                    f"no lake at {self.store.url} ({error}). "
                    f"`lake init {self.store.url}` or the first commit makes one."
                ) from error
            self._info = decode_info(data, self.store.url)
        return self._info

    def datasets(self) -> list[str]:
        """Names of the datasets that exist now, sorted; one LIST, then a head for each name."""
        self.info()
        keys = [found.key for found in self.store.list(names.NAMES)]
        spelled = self.each(lambda key: self.document(key, "name")["name"], keys)
        alive = self.each(lambda name: self.head(name) is not None, spelled)
        return sorted(name for name, exists in zip(spelled, alive, strict=True) if exists)

    # --- logs ---------------------------------------------------------------------------------

    def newest(self, name: str) -> int:
        """The seq of the dataset's newest log entry, 0 if there is none: the hint, then what lies beyond it."""
        hint = self.hint(name)
        if self._in_folder:
            return _gallop(lambda seq: self.store.head(names.log_key(name, seq)) is not None, hint)
        newest = self._listed(name, after=hint - 1)
        return newest or (self._listed(name, after=0) if hint > 1 else 0)  # a hint is never an error

    def entry(self, name: str, seq: int) -> LogEntry:
        """Log entry `seq` of the dataset.

        Raises:
            NotFoundError: there is no such entry.
        """
        key = names.log_key(name, seq)
        data, what = self.store.get(key), f"{key} in {self.store.url}"
        with whole(data, what):
            return log.decode_entry(data, what)

    def entries(self, name: str, *, after: int = 0) -> list[LogEntry]:
        """Every log entry with a seq above `after`, newest first."""
        newest = self.newest(name)
        return self.each(lambda seq: self.entry(name, seq), range(newest, after, -1))

    def search(self, name: str, newest: int) -> Iterator[LogEntry]:
        """The entries from seq `newest` down, fetched a few at a time: for a caller who may stop early."""
        for top in range(newest, 0, -_FETCHERS):
            yield from self.each(lambda seq: self.entry(name, seq), range(top, max(0, top - _FETCHERS), -1))

    def head(self, name: str) -> LogEntry | None:
        """The newest log entry of a dataset that exists; None if there is none or it was removed."""
        entry = self.base(name, document=False).entry
        return entry if entry and entry.version else None

    def base(self, name: str, *, document: bool = True) -> Base:
        """What a change to the dataset starts from, which may be nothing."""
        seq = self.newest(name)
        if seq == 0:
            return Base(0, 1, None, None)
        return self.base_of(name, self.entry(name, seq), document=document)

    def base_of(self, name: str, entry: LogEntry, *, document: bool = True) -> Base:
        """The base that `entry` is, with its version's document unless told otherwise."""
        if entry.version is None:
            return Base(entry.seq, entry.seq + 1, entry, None)
        return Base(entry.seq, entry.born, entry, self.version(name, entry.version) if document else None)

    # --- versions -----------------------------------------------------------------------------

    def version(self, name: str, version_id: str) -> VersionDocument:
        """The document of a version of the dataset, checked against its id.

        Raises:
            NotFoundError: the dataset has no such version.
            IntegrityError: the stored document is not what its name says.
        """
        with self._lock:
            known = self._versions.get(version_id)
        if known is None:
            data = self.blob(version_id, names.version_keys(name, version_id))
            known = version.decode_version(data, version_id)
            with self._lock:
                self._versions[version_id] = known
        return known

    def manifest(self, document: VersionDocument) -> Manifest:
        """The shards of a version: its segments, fetched a few at a time."""
        return self.segments(document, last=len(document.segments))

    def segments(self, document: VersionDocument, *, last: int) -> Manifest:
        """The shards of the version's last so many segments."""
        refs = document.segments[len(document.segments) - last :]
        data = _Segments(self, [ref.digest for ref in refs])
        near = self.cache is not None or self._in_folder
        return Manifest.open(document.schema, refs, data if near else list(data), target=document.cuts.target)

    def tables(self, document: VersionDocument, *, last: int, schema: pa.Schema) -> list[pa.Table]:
        """The rows of the version's last so many segments, decoded whole under this schema by one who writes."""
        refs = document.segments[len(document.segments) - last :]
        data = _Segments(self, [ref.digest for ref in refs])
        return [decode_segment(each, ref, schema, writing=True) for each, ref in zip(data, refs, strict=True)]

    def segment(self, digest: str) -> bytes:
        """The bytes of one manifest segment, checked against its digest."""
        return self.blob(digest, names.segment_keys(digest))

    def document(self, key: str, *members: str) -> dict[str, Any]:
        """The JSON document at `key`, which must have these members.

        Raises:
            NotFoundError: there is none.
            IntegrityError: it is not a JSON document, or lacks one of them.
        """
        data, what = self.store.get(key), f"{key} in {self.store.url}"
        with whole(data, what):
            found = documents.parse(data, what)
            documents.check_fields(found, members, what, writing=False)
            return found

    # --- inside -------------------------------------------------------------------------------

    @property
    def _in_folder(self) -> bool:
        """Whether a request costs as little as opening a file."""
        return self.store.local_path(names.LAKE) is not None

    def blob(self, digest: str, keys: Keys) -> bytes:
        """The bytes of an immutable document, checked against its digest."""

        def fetch() -> bytes:
            return read_generation(self.store, keys, digest)

        return self.cache.blob(digest, fetch) if self.cache is not None else fetch()

    def hint(self, name: str) -> int:
        """The head's seq as of some time; 0 where nothing, or nothing readable, says it."""
        try:
            hint = int(self.store.get(names.head_key(name)))
            return hint if 0 < hint < 10**20 else 0
        except (NotFoundError, ValueError):
            return 0

    def _listed(self, name: str, *, after: int) -> int:
        """The highest seq above `after` that one LIST shows; 0 if there is none."""
        start = names.log_key(name, after) if after > 0 else None
        listed = self.store.list(names.log_prefix(name), start_after=start)
        return max((names.log_seq(found.key) for found in listed), default=0)

    def each(self, function: Callable[[Any], Any], items: Any) -> list[Any]:
        """What the function makes of each item, in order; asks a bucket a few at a time."""
        items = list(items)
        if len(items) < 2 or self._in_folder:
            return [function(item) for item in items]
        with ThreadPoolExecutor(_FETCHERS) as pool:
            return list(pool.map(function, items))


class _Segments(Sequence[bytes]):
    """The bytes of segments: all in turn, a few fetched at once; again when asked for, unless used lately."""

    def __init__(self, refs: Refs, digests: Sequence[str]) -> None:
        self._refs, self._digests = refs, digests
        self._segment = lru_cache(maxsize=_SEGMENTS)(refs.segment)

    def __len__(self) -> int:
        return len(self._digests)

    def __getitem__(self, index: Any) -> Any:
        return self._segment(self._digests[index])

    def __iter__(self) -> Iterator[bytes]:
        for first in range(0, len(self), _FETCHERS):
            yield from self._refs.each(self._segment, self._digests[first : first + _FETCHERS])


def decode_info(data: bytes, url: str) -> LakeInfo:
    """What `lake.json` says.

    Raises:
        FormatError: it is of a newer format.
        IntegrityError: it is not a lake's description.
    """
    what = f"{names.LAKE} in {url}"
    with whole(data, what):
        document = documents.parse(data, what)
        if document.get("format", names.FORMAT) != names.FORMAT:
            raise FormatError(
                f"{what} is of format {document['format']!r}, not {names.FORMAT}: upgrade lake to read it"
            )
        documents.check_fields(document, ("format", "id", "created", "grace", "needs"), what, writing=False)
        documents.check_needs(document["needs"], what)
        try:
            grace = parse_duration(document["grace"])
        except (TypeError, ValueError) as error:
            raise FormatError(f"{what}: `grace`: {error}") from None
        return LakeInfo(id=str(document["id"]), created=str(document["created"]), grace=grace)


@contextmanager
def whole(data: bytes, what: str) -> Iterator[None]:
    """Where `data` is decoded: a FormatError becomes an IntegrityError, unless a newer release would read it.

    A document that needs more than this release knows says so in a form that this release can read.
    """
    try:
        yield
    except FormatError as error:
        if _is_newer(data):
            raise
        why = str(error).removeprefix(what).partition(": upgrade")[0].strip(": ")
        raise IntegrityError(
            f"{what} is damaged ({why}): `lake verify` shows what else is; put back a copy of the object"
        ) from error


def decoded(decode: Callable[..., T], data: bytes, what: str) -> T:
    """What `decode(data, what, writing=True)` makes of a document that somebody who changes the lake relies on.

    Raises:
        FormatError: a later release wrote it, or wrote into it. IntegrityError: it is damaged.
    """
    try:
        return decode(data, what, writing=True)
    except FormatError:
        with whole(data, what):
            decode(data, what)  # reads all the same: only who writes must know every field
        raise


def _is_newer(data: bytes) -> bool:
    """Whether the document says, in a way that every release reads, that it takes a later one."""
    try:
        document = documents.parse(data, "")
    except FormatError:
        return False
    stated = document.get("format")
    try:
        documents.check_needs(document.get("needs", documents.NO_NEEDS), "")
    except FormatError:
        return True
    return type(stated) is int and stated > names.FORMAT


def generations(store: Store, keys: Keys) -> list[Object]:
    """Stored copies of one object beyond the first; costs one LIST."""
    return list(store.list(names.stem(keys(0)) + ".g"))


def read_generation(store: Store, keys: Keys, digest: str) -> bytes:
    """The bytes named `digest`: the base copy, else a later generation of it.

    Raises:
        NotFoundError: no copy exists.
        IntegrityError: no copy has this digest.
    """
    wrong = None
    try:
        data = store.get(keys(0))
        if documents.sha256_hex(data) == digest:
            return data
        wrong = keys(0)
    except NotFoundError:
        pass
    for copy in generations(store, keys):
        data = store.get(copy.key)
        if documents.sha256_hex(data) == digest:
            return data
        wrong = copy.key
    if wrong is not None:
        raise IntegrityError(
            f"{wrong} in {store.url} differs from the digest in its name; `lake verify` shows what it hurts",
            digest=digest,
        )
    raise NotFoundError(f"no {keys(0)} in {store.url}, in any generation")


def _gallop(exists: Callable[[int], bool], known: int) -> int:
    """The last seq that exists, given that all up to `known` (at least) do: doubling, then bisecting."""
    if known and not exists(known):
        known = 0
    step = 1
    while exists(known + step):
        known, step = known + step, step * 2
    low, high = known, known + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low
