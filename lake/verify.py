"""Look for damage: every object that a version needs and that is missing, truncated, altered or unreadable.

Stored bytes are judged, never what a cache has of them. One sound copy is enough: a damaged copy beside it
hurts nobody. It repairs nothing; of a blob found altered it leaves a note in the store where it may
(`gc/damaged/`), because gc, which reads no parts, must not collect a lake with damage.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa

from lake.errors import FormatError, IntegrityError, LakeError, NotFoundError
from lake.format import content, documents, log, names, schema, version
from lake.format.manifest import Manifest
from lake.format.part import OpenPart
from lake.format.values import LogEntry, Part, SegmentRef, VersionDocument
from lake.guard import read_list
from lake.progress import Bar
from lake.progress import progress as show
from lake.refs import Refs, decode_info
from lake.roots import Listed, datasets, decode_pointer, is_misplaced, life_of, parts_in, pointer_key
from lake.stores.base import Object, Store
from lake.survey import BLOBS, Survey, copies_of

Level = Literal["refs", "exists", "sample", "full"]
Kind = Literal["missing", "truncated", "altered", "unreadable"]
LEVELS: tuple[Level, ...] = ("refs", "exists", "sample", "full")
SAMPLE = 0.05  # of the parts of each segment
_READERS = 4  # parts read at once
_FETCHES = 3  # of bytes that look damaged: on their way they may have been cut short or altered, too
_LAST = {"version": b"}}", "segment": b"PAR1"}  # how whole ones end


@dataclass(frozen=True, slots=True)
class Problem:
    """One object that is not what it should be, and the versions (`name@id`) that it hurts."""

    key: str
    kind: Kind
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found: `problems` by key; `objects` and `bytes` are what it looked at and read."""

    ok: bool
    problems: tuple[Problem, ...]
    objects: int
    bytes: int


def verify(
    refs: Refs, *, level: Level = "exists", name: str | None = None, progress: bool | None = None
) -> Report:
    """All damage in the lake, or in one dataset.

    `level`: "refs" reads every document, "exists" also looks whether every part is there with its size, "sample"
    also reads some parts, "full" all of them: digest, every batch, every value.

    Raises:
        NotFoundError: no lake, or no such dataset. StoreError: the store does not answer, which is no damage.
    """
    if level not in LEVELS:
        raise ValueError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
    return _Verifier(Refs(refs.store), level).run(name, progress)


def check_part(part: Part, stored: pa.Schema, data: Any) -> Kind | None:
    """What is wrong with these bytes of a part; None if nothing is."""
    if hashlib.sha256(data).hexdigest() != part.digest:
        return "truncated" if len(memoryview(data)) < part.bytes else "altered"
    try:
        opened = OpenPart(data, part, stored)
        batches = [opened.batch(i, verify=True, first_read=True) for i in range(len(part.batches))]
        if list(pa.ipc.open_file(opened.data).schema.names) != list(part.fields):
            return None  # columns were dropped since: `content` is that of all that the file has
        columns = [[batch.column(i) for batch in batches] for i in range(len(part.fields))]
        fields = [stored.field(field) for field in part.fields]
    except (LakeError, pa.ArrowException, ValueError):
        return "unreadable"
    return None if content.content_digest(fields, columns) == part.content else "altered"


class _Verifier:
    """One call of `verify`."""

    def __init__(self, refs: Refs, level: Level) -> None:
        self.refs, self.store, self.level = refs, refs.store, level
        self.survey = Survey.of(self.store)
        self.found: dict[str, tuple[Kind, set[str]]] = {}  # key -> what, and the versions hurt
        self.segments: dict[str, tuple[SegmentRef, VersionDocument, set[str]]] = {}
        self.hurt: dict[str, str] = {}  # digests of damaged parts -> the key that says so
        self.seen: set[str] = set()  # digests of parts looked at
        self.objects = self.bytes = 0
        self.random = random.Random()

    def run(self, name: str | None, progress: bool | None) -> Report:
        self._lake()
        unknown: list[str] = []
        there = datasets(self.store, name, unknown)
        if name is not None:
            there = {name: there[name]} if name in there else {}
        if not there and name is not None:
            raise NotFoundError(f"no dataset {name!r} in {self.store.url}")
        for key in unknown:
            self._note(key, "unreadable")
        for each, listed in there.items():
            self._dataset(each, listed)
        if name is None:
            self._lists()
        total = sum(ref.bytes for ref, _, _ in self.segments.values()) if self.level == "full" else None
        with show(progress, f"verify {name or self.store.url}", total, unit="bytes") as bar:
            for ref, document, versions in self.segments.values():
                self._segment(ref, document, versions, bar)
        self._leave_notes()
        problems = [
            Problem(key, kind, tuple(sorted(versions))) for key, (kind, versions) in self.found.items()
        ]
        return Report(
            not problems, tuple(sorted(problems, key=lambda one: one.key)), self.objects, self.bytes
        )

    # --- documents ----------------------------------------------------------------------------

    def _lake(self) -> None:
        self.objects += 1
        try:
            decode_info(self.store.get(names.LAKE), self.store.url)
        except NotFoundError:
            if not self.survey.blobs:
                self.refs.info()
            self._note(names.LAKE, "missing")
        except (FormatError, IntegrityError, KeyError, ValueError, TypeError):
            self._note(names.LAKE, "unreadable")

    def _dataset(self, name: str, listed: Listed) -> None:
        entries = self._log(name, listed)
        life = life_of([entry for entry in entries if entry is not None])
        wanted = {
            str(entry.version)
            for entry in entries
            if entry and entry.seq >= life and entry.version and entry.operation != log.EXPIRED
        }
        for parsed in listed.pointers:
            wanted |= self._pointer(pointer_key(name, parsed), parsed, life)
        for version_id in sorted(wanted):
            self._version(name, version_id)
        for key in listed.txns:
            self._txn(key)
        if entries:
            self._name(name, {f"{name}@{version_id}" for version_id in wanted})

    def _log(self, name: str, listed: Listed) -> list[LogEntry | None]:
        """The entries, oldest first; None where there should be one that can be read."""
        newest, hint = max(listed.seqs, default=0), self.refs.hint(name)
        entries = [self._entry(name, seq) for seq in range(1, newest + (hint == newest + 1) + 1)]
        if hint > newest + 1:
            self._note(names.head_key(name), "altered")
        for before, after in pairwise(entries):
            if before and after and (after.parent != before.version or after.time < before.time):
                odd = before if self._is_stray(name, before.version, after.parent) else after
                self._note(names.log_key(name, odd.seq), "altered", {f"{name}@{after.parent}"})
        for seq, (lost, after) in enumerate(pairwise(entries), 1):
            if lost is None and after is not None and after.parent:
                self._note(names.log_key(name, seq), "missing", {f"{name}@{after.parent}"})
        return entries

    def _is_stray(self, name: str, one: str | None, other: str | None) -> bool:
        """Whether only the other of two versions is stored."""
        there = [
            found is not None and names.stem(names.version_key(name, found)) in self.survey.blobs
            for found in (one, other)
        ]
        return there == [False, True]

    def _entry(self, name: str, seq: int) -> LogEntry | None:
        key = names.log_key(name, seq)
        self.objects += 1
        try:
            entry = log.decode_entry(self._document(key), key)
        except (NotFoundError, FormatError) as error:
            self._note(key, "missing" if isinstance(error, NotFoundError) else "unreadable")
            return None
        if entry.seq == seq:
            return entry
        self._note(key, "altered")
        return None

    def _pointer(self, key: str, parsed: names.ParsedKey, life: int) -> set[str]:
        self.objects += 1
        try:
            pointer = decode_pointer(parsed, self._document(key), key, writing=True)
        except NotFoundError:  # taken away since it was listed
            return set()
        except FormatError:
            self._note(key, "unreadable")
            return set()
        if is_misplaced(pointer, parsed):
            self._note(key, "altered", {f"{parsed.name}@{parsed.digest}"})
        return {pointer.version} if pointer.born >= life else set()

    def _txn(self, key: str) -> None:
        self.objects += 1
        with suppress(NotFoundError):
            try:
                sound = type(documents.parse(self._document(key), key).get("base")) is int
            except FormatError:
                sound = False
            if not sound:
                self._note(key, "unreadable")

    def _lists(self) -> None:
        """Those of gc: who cannot read them may not write either."""
        for stored in self.survey.lists.values():
            self.objects += 1
            try:
                read_list(self.store, stored.key)
            except (FormatError, IntegrityError):
                self._note(stored.key, "unreadable")

    def _name(self, name: str, versions: set[str]) -> None:
        key = names.name_key(name)
        self.objects += 1
        try:
            spelled = documents.parse(self._document(key), key).get("name")
        except NotFoundError:
            self._note(key, "missing", versions)
        except FormatError:
            self._note(key, "unreadable", versions)
        else:
            if spelled != name:
                self._note(key, "altered", versions)

    def _version(self, name: str, version_id: str) -> None:
        label = f"{name}@{version_id}"
        data = self._blob("version", names.version_keys(name, version_id), version_id, {label})
        if data is None:
            return
        try:
            document = version.decode_version(data, version_id)
        except FormatError:
            self._note(names.version_key(name, version_id), "unreadable", {label})
            return
        for ref in document.segments:
            self.segments.setdefault(ref.digest, (ref, document, set()))[2].add(label)

    # --- segments and parts -------------------------------------------------------------------

    def _segment(self, ref: SegmentRef, document: VersionDocument, versions: set[str], bar: Bar) -> None:
        data = self._blob("segment", names.segment_keys(ref.digest), ref.digest, versions)
        if data is None:
            return
        try:
            if self.level in ("sample", "full"):
                manifest = Manifest.open(document.schema, [ref], [data], target=document.cuts.target)
                parts = [part for shard in manifest.shards() for part in shard.parts]
            sizes = dict(parts_in(data, ref, document))
        except FormatError:
            self._note(names.segment_key(ref.digest), "unreadable", versions)
            return
        fresh = [digest for digest in sizes if digest not in self.seen]
        self.seen.update(fresh)
        if self.level != "refs":
            self._sizes({digest: sizes[digest] for digest in fresh})
        if self.level in ("sample", "full"):
            unread = {
                part.digest: part for part in parts if part.digest in fresh and part.digest not in self.hurt
            }
            self._read(self._chosen(list(unread.values())), schema.stored_schema(document.schema), bar)
        for digest in sizes.keys() & self.hurt.keys():
            self.found[self.hurt[digest]][1].update(versions)

    def _chosen(self, parts: Sequence[Part]) -> Sequence[Part]:
        if self.level == "full" or not parts:
            return parts
        return self.random.sample(parts, math.ceil(SAMPLE * len(parts)))

    def _sizes(self, sizes: dict[str, int]) -> None:
        """Note the parts of which no copy has the right size."""
        for digest, size in sizes.items():
            self.objects += 1
            copies = self._copies(names.part_keys(digest), size)
            if not any(copy.size == size for copy in copies):
                kind: Kind = "missing" if not copies else "truncated" if copies[0].size < size else "altered"
                self._hurt(digest, copies[0].key if copies else names.part_key(digest), kind)

    def _read(self, parts: Iterable[Part], stored: pa.Schema, bar: Bar) -> None:
        def one(part: Part) -> tuple[Part, str, Kind | None]:
            kinds = []
            for copy in self._copies(names.part_keys(part.digest), part.bytes):
                for _ in range(_FETCHES):
                    kind = check_part(part, stored, _bytes_of(self.store, copy.key))
                    if kind is None:
                        return part, copy.key, None
                kinds.append((copy.key, kind))
            return (part, *kinds[0]) if kinds else (part, names.part_key(part.digest), "missing")

        with ThreadPoolExecutor(_READERS, thread_name_prefix="lake-verify") as pool:
            for part, key, kind in pool.map(one, parts):
                self.bytes += part.bytes
                bar.advance(part.bytes)
                if kind is not None:
                    self._hurt(part.digest, key, kind)

    # --- inside -------------------------------------------------------------------------------

    def _blob(self, kind: str, keys: names.Keys, digest: str, versions: set[str]) -> bytes | None:
        """A sound copy of a document; None once it is noted that there is none."""
        self.objects += 1
        wrong: tuple[str, Kind] = (keys(0), "missing")
        for copy in self._copies(keys, None):
            for _ in range(_FETCHES):
                data = self.store.get(copy.key)
                if documents.sha256_hex(data) == digest:
                    self.bytes += len(data)
                    return data
            if wrong[1] == "missing":
                wrong = copy.key, "altered" if data.endswith(_LAST[kind]) else "truncated"
        self._note(*wrong, versions)
        return None

    def _document(self, key: str) -> bytes:
        """The bytes of a document without a digest, read again where they are none."""
        for _ in range(_FETCHES - 1):
            data = self.store.get(key)
            with suppress(FormatError):
                documents.parse(data, key)
                return data
        return self.store.get(key)

    def _copies(self, keys: names.Keys, size: int | None) -> list[Object]:
        """Stored copies, as listed at the beginning; as they are now where those do not do."""
        stem = names.stem(keys(0))
        copies = self.survey.blobs.get(stem, [])
        if not any(size in (None, copy.size) for copy in copies):
            copies = copies_of(self.store, stem)
        return copies

    def _hurt(self, digest: str, key: str, kind: Kind) -> None:
        self.hurt[digest] = key
        self._note(key, kind)

    def _note(self, key: str, kind: Kind, versions: Iterable[str] = ()) -> None:
        self.found.setdefault(key, (kind, set()))[1].update(versions)

    def _leave_notes(self) -> None:
        for key, (kind, _) in self.found.items():
            parsed = names.parse_key(key)
            if kind in ("altered", "unreadable") and parsed is not None and parsed.kind in BLOBS:
                with suppress(LakeError):  # who may only read verifies all the same
                    self.store.put_new(names.damaged_key(key), key.encode())


def _bytes_of(store: Store, key: str) -> Any:
    """A part's bytes, mapped where it is a file."""
    path = store.local_path(key)
    if path is None:
        return store.get(key)
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()
