"""The writers' half of garbage collection: what a writer may count on being there when its commit lands.

A collector publishes what it is about to delete as a list (`gc/condemned/*.parquet`, column `key`) and waits
out a grace period before it deletes. A writer therefore reads the lists *first*, then looks up or writes each
object; a listed key counts as absent, and the object is written again as its next generation. Once half the
grace has passed since the reading, everything is read and looked up again before a root (a log entry, tag,
pin or derived pointer) is made, and a root takes effect within the grace or not at all.
`lake.gc` is the other half. Only what a log entry inherits from the base it is created on needs no look-up.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from lake.errors import ConflictError, FormatError, IntegrityError, NotFoundError, VersionExpired
from lake.format import names
from lake.format.names import Keys
from lake.refs import generations
from lake.stores.base import Object, Staged, Store

LEAST_GRACE = 24 * 3600.0  # seconds, whatever `lake.json` says
_CONDEMNABLE = ("version", "segment", "part")
_LIST_ABOVE = 64  # objects; for more, one listing is cheaper than a request for each


def read_list(store: Store, key: str) -> list[str]:
    """The keys on a condemned list; none where it is gone: its run is finished, and what it named is gone too.

    Raises:
        IntegrityError: it is no such list. FormatError: it is one of a newer release. Nobody may then write or collect.
    """
    try:
        data = store.get(key)
    except NotFoundError:
        return []
    return _decode_list(data, f"{key} in {store.url}")


def _decode_list(data: bytes, what: str) -> list[str]:
    try:
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(f"{what} is no list of condemned objects ({error}); restore it") from error
    listed: list[str] = table["key"].to_pylist() if "key" in table.column_names else [""]
    if set(table.column_names) - {"key", "bytes"} or any(
        _kind_of(each) not in _CONDEMNABLE for each in listed
    ):
        raise FormatError(f"{what} is not a list that this release knows: upgrade lake to write here")
    return listed


def _kind_of(key: object) -> str | None:
    parsed = names.parse_key(str(key))
    return parsed.kind if parsed else None


class Guard:
    """Objects that one writer relies on. Thread-safe; made anew for each commit."""

    def __init__(self, store: Store, grace: float, damaged: Collection[str] = ()) -> None:
        self.store = store
        self._damaged = damaged  # keys of copies that are as good as condemned
        self.grace = max(grace, LEAST_GRACE)  # seconds
        self._lock = threading.Lock()
        self._relied: dict[str, Keys] = {}  # base key -> its generations
        self._secured: set[str] = set()  # base keys of those whose bytes are not at hand
        self._condemned: frozenset[str] = frozenset()
        self._highest: dict[str, int] = {}  # stem -> generation of it that is condemned
        self._checked_at = (
            self._read_lists()
        )  # when the lists were read by which everything relied on is judged

    # --- looking up and writing ---------------------------------------------------------------

    def has(self, keys: Keys, size: int | None = None) -> bool:
        """Whether some copy is there, of `size` bytes if given, and not condemned. If so, it is relied on."""
        found = self._missing(keys, size) is None
        if found:
            self._rely(keys)
        return found

    def put(self, keys: Keys, data: bytes) -> bool:
        """Make sure that `data` is stored; True if it had to be written."""
        return self._write(keys, len(data), lambda key: self.store.put_new(key, data))

    def publish(self, keys: Keys, staged: Staged, digest: str) -> bool:
        """Make sure that what was staged is stored; True if it had to be written."""
        return self._write(keys, staged.tell(), lambda key: staged.publish(key, digest))

    def secure(self, objects: Sequence[Keys]) -> None:
        """Rely on objects whose bytes are not at hand; those that are condemned are copied to a further generation.

        Raises:
            VersionExpired: one is gone.
        """
        self._secured.update(keys(0) for keys in objects)
        self._look_up(objects)

    def further(self, keys: Keys, create: Callable[[str], bool]) -> None:
        """Store one more copy of an object, beside those there: for one of which no copy is sound."""
        copies = _stored(self.store, keys)
        while not create(keys(self._next(keys, copies))):
            copies = _stored(self.store, keys)

    # --- making a root ------------------------------------------------------------------------

    @contextmanager
    def root(self) -> Iterator[None]:
        """The time in which a root may be created: everything relied on is there, and stays there.

        Raises:
            ConflictError: something written was collected meanwhile; repeating the commit writes it again.
            VersionExpired: something secured was.
        """
        with self.store.root_lease():
            while self.store.now() - self._checked_at > self.grace / 2:
                self._look_again()
            yield

    # --- inside -------------------------------------------------------------------------------

    def _rely(self, keys: Keys) -> None:
        with self._lock:
            self._relied[keys(0)] = keys

    def _write(self, keys: Keys, size: int, create: Callable[[str], bool]) -> bool:
        generation = self._missing(keys, size)
        created = generation is not None and create(keys(generation))
        if generation is not None and not created and self._missing(keys, size) is not None:
            raise ConflictError(
                f"{keys(0)} in {self.store.url} is being collected; repeating the commit writes it again",
                retryable=True,
            )
        self._rely(keys)
        return created

    def _look_up(self, objects: Sequence[Keys]) -> None:
        """Make sure of each object, by one listing where they are many."""
        listed = self._listing(objects) if len(objects) > _LIST_ABOVE else None
        for keys in objects:
            if listed is None or keys(0) not in listed or keys(0) in self._condemned:
                generation = self._missing(keys, None)
                if generation is not None:
                    self._revive(keys, generation)
            self._rely(keys)

    def _listing(self, objects: Sequence[Keys]) -> frozenset[str]:
        """Every key that is there, of the kinds that these objects are."""
        prefixes = {keys(0).partition("/")[0] + "/" for keys in objects} - {"datasets/"}
        return frozenset(found.key for prefix in prefixes for found in self.store.list(prefix))

    def _missing(self, keys: Keys, size: int | None) -> int | None:
        """None where a usable copy is there; else the generation that is free to be written."""
        first = self.store.head(keys(0))
        if first is None and names.stem(keys(0)) not in self._highest:
            return 0  # one request decides, unless somebody collects it: a further copy does no harm
        if first is not None and size in (None, first.size) and keys(0) not in self._condemned:
            return None
        copies = _stored(self.store, keys)
        if any(copy.key not in self._condemned and size in (None, copy.size) for copy in copies):
            return None
        return self._next(keys, copies)

    def _next(self, keys: Keys, copies: Sequence[Object]) -> int:
        """One above the highest generation that exists or is condemned."""
        condemned = self._highest.get(names.stem(keys(0)), -1)
        return max([condemned, *(names.generation_of(copy.key) for copy in copies)]) + 1

    def _read_lists(self) -> float:
        """Read every list there is; the time at which that began."""
        began = self.store.now()
        listed = set(self._damaged)
        for found in self.store.list(names.CONDEMNED):
            listed.update(read_list(self.store, found.key))
        self._condemned = frozenset(listed)
        self._highest = {}
        for key in listed:
            stem = names.stem(key)
            self._highest[stem] = max(self._highest.get(stem, 0), names.generation_of(key))
        return began

    def _look_again(self) -> None:
        began = self._read_lists()
        with self._lock:
            relied = list(self._relied.values())
        own = [keys for keys in relied if keys(0) not in self._secured]
        try:
            self._look_up(own)
        except VersionExpired as error:
            raise ConflictError(f"{error} Repeating the commit writes it again.", retryable=True) from error
        self._look_up([keys for keys in relied if keys(0) in self._secured])
        self._checked_at = began  # only now: what fails half-way has checked nothing

    def _revive(self, keys: Keys, generation: int) -> None:
        """Write a further generation of a condemned object from a copy that still exists."""
        for source in _stored(self.store, keys):
            try:
                self.store.copy(source.key, keys(generation))
            except NotFoundError:
                continue
            return
        raise VersionExpired(f"{keys(0)} in {self.store.url} was collected.")


def _stored(store: Store, keys: Keys) -> list[Object]:
    """Every stored copy of an object."""
    first = store.head(keys(0))
    return ([first] if first else []) + generations(store, keys)
