"""Collect what nothing reaches, beside running writers and without a lock server: condemn, wait, sweep.

A run *condemns*: it lists what is stored, then reads the roots, and publishes what they do not reach as
`gc/condemned/<run>.parquet`. It deletes nothing. From then on writers count those keys as absent
(`lake.guard`). At least one grace later the list is *swept*, by one process only: the one that creates
`gc/claimed/<run>`. Roots are read anew, and what they still do not reach in any generation is deleted,
documents before segments before parts. `gc/swept/<run>` says that every delete was answered or given up; the
list goes one grace later, and the two markers after it. A list whose sweeper died stays for good.

It fails closed: whatever is unreadable, unknown or damaged ends it before anything is published or deleted.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lake.commit import prepare
from lake.config import format_bytes, parse_duration
from lake.errors import IntegrityError, NotFoundError
from lake.format import documents, names
from lake.guard import LEAST_GRACE, read_list
from lake.refs import Refs
from lake.roots import reached, read_roots
from lake.stores.base import Object, Store
from lake.survey import Survey, copies_of

FUSE = 0.3  # of all stored bytes: more is collected only by force
_BATCH = 1000  # keys of one delete
_ORDER = {"version": 0, "segment": 1, "part": 2}  # in which kinds are deleted
_LAKE_FIELDS = ("format", "id", "created", "grace", "needs")
_LIST = pa.schema({"key": pa.string(), "bytes": pa.int64()})


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a run did, or with `dry_run` would do."""

    condemned: int  # objects that it put on its list; they go at least one grace later
    deleted: int  # objects that it deleted, those of unfinished writes included
    bytes: int  # of what it deleted
    condemned_bytes: int
    waiting: int  # objects on lists that are not due yet
    failed: int  # objects that could not be deleted
    unfinished: int  # uploads that it took back
    foreign: tuple[str, ...]  # keys of no shape that lake knows: left alone
    needs_force: bool  # over 30 % of all bytes would go
    dry_run: bool


def gc(
    refs: Refs,
    *,
    dry_run: bool = True,
    force: bool = False,
    no_writers: bool = False,
    grace: float | str | None = None,
    single_writer: bool = False,
) -> GcReport:
    """Sweep the lists that are due, then condemn what else is unreachable.

    `grace`: longer than the lake's or, with `no_writers` (nobody writes, and no other run is under way), any.
    `force`: also where more than 30 % of all bytes would go.

    Raises:
        IntegrityError: the lake is damaged. FormatError: something in it is unknown. Nothing was deleted.
        ValueError: a grace that is too short, or too much would go.
    """
    wait = _grace(refs, grace, no_writers)
    if not dry_run:
        prepare(refs, single_writer=single_writer)
    return _Run(refs, wait, dry_run=dry_run, force=force).go()


def check_whole(refs: Refs, survey: Survey, kept: Mapping[str, int]) -> None:
    """That everything kept is stored with its size, and nothing that `verify` found damaged still is.

    Raises:
        IntegrityError: it is not.
    """
    store = refs.store
    hurt = [
        stem
        for stem, size in kept.items()
        if not any(copy.size == size for copy in survey.blobs.get(stem, ()))
        and not any(copy.size == size for copy in copies_of(store, stem))  # stored since the listing
    ]
    hurt += [stem for stem in _noted(store, survey) if stem in kept and not _is_sound(store, stem)]
    if hurt:
        raise IntegrityError(
            f"{len(hurt):,} objects that versions need are missing or damaged in {store.url}, {hurt[0]} among them: "
            "a lake with damage is not collected; `lake verify` shows what it hurts, `lake repair` what can be done",
            digest=hurt[0].rpartition("/")[2],
        )


class _Run:
    """One call of `gc`."""

    def __init__(self, refs: Refs, grace: float, *, dry_run: bool, force: bool) -> None:
        self.refs, self.store = refs, refs.store
        self.grace, self.dry_run, self.force = grace, dry_run, force
        self.survey = Survey.of(self.store)
        self.deleted: list[Object] = []
        self.failed: dict[str, Exception] = {}

    def go(self) -> GcReport:
        due, waiting = self._lists()
        if due and not self.dry_run:
            with self.store.root_lease(exclusive=True):
                pass  # whoever tested its clock before now has made its root
        kept = reached(self.refs, read_roots(self.refs))
        check_whole(self.refs, self.survey, kept)
        garbage = {c.key: c for stem, copies in self.survey.blobs.items() if stem not in kept for c in copies}
        doomed = {key for keys in due.values() for key in keys if key in garbage}
        fresh = {
            key
            for key, found in garbage.items()
            if key not in doomed and key not in waiting and self.survey.age(found) >= self.grace
        }
        needs_force = self._check_fuse(garbage[key].size for key in doomed | fresh)
        for run, keys in due.items():
            self._sweep(run, [garbage[key] for key in keys if key in doomed])
        run = self._condemn([garbage[key] for key in sorted(fresh)])
        if not self.grace:
            self._sweep(run, [garbage[key] for key in fresh])
        self._delete([found for found in self.survey.tmp if self.survey.age(found) >= self.grace])
        self._drop_lists()
        return GcReport(
            condemned=len(fresh),
            deleted=len(self.deleted),
            bytes=sum(found.size for found in self.deleted),
            condemned_bytes=sum(garbage[key].size for key in fresh),
            waiting=len(waiting & garbage.keys()),
            failed=len(self.failed),
            unfinished=self.store.abandon(self.survey.now - self.grace, dry_run=self.dry_run),
            foreign=tuple(self.survey.foreign),
            needs_force=needs_force,
            dry_run=self.dry_run,
        )

    # --- lists --------------------------------------------------------------------------------

    def _lists(self) -> tuple[dict[str, list[str]], set[str]]:
        """The lists that may be swept now, and the keys on those that may be later."""
        due: dict[str, list[str]] = {}
        waiting: set[str] = set()
        for run, stored in self.survey.lists.items():
            if run in self.survey.claimed:
                continue  # swept, being swept, or its sweeper died: its keys may be condemned again
            keys = read_list(self.store, stored.key)
            if self.survey.age(stored) >= self.grace:
                due[run] = keys
            else:
                waiting.update(keys)
        return due, waiting

    def _condemn(self, objects: Sequence[Object]) -> str:
        """Publish a list of these objects; the name of the run."""
        run = uuid.uuid4().hex
        if objects and not self.dry_run:
            sink = io.BytesIO()
            columns = [[found.key for found in objects], [found.size for found in objects]]
            table = pa.Table.from_arrays(list(map(pa.array, columns)), schema=_LIST)
            pq.write_table(table, sink, write_page_checksum=True)
            self.store.put_new(names.condemned_key(run), sink.getvalue())
        return run

    def _sweep(self, run: str, objects: Sequence[Object]) -> None:
        """Delete these objects of the run's list, if nobody else has begun to."""
        if not objects and self.dry_run:
            return
        if not self.dry_run and not self._claim(run):
            return
        self._delete(objects)
        if not self.dry_run:
            self.store.put_new(names.swept_key(run), b"")

    def _claim(self, run: str) -> bool:
        """Whether this process, and so no other ever, sweeps the run's list."""
        key, mine = names.claimed_key(run), uuid.uuid4().hex.encode()
        try:
            if not self.store.put_new(key, mine) and self.store.get(key) != mine:
                return False
        except NotFoundError:  # its list went meanwhile, and its marker with it
            return False
        return self.store.head(names.condemned_key(run)) is not None

    def _drop_lists(self) -> None:
        """Take away the lists of sweeps that are a grace old, and the markers of lists that are gone."""
        if self.dry_run:
            return
        store, survey = self.store, self.survey if self.grace else Survey.of(self.store)
        old = [run for run, marker in survey.swept.items() if survey.age(marker) >= self.grace]
        if not (self.failed and not self.grace):
            store.delete([names.condemned_key(run) for run in old if run in survey.lists])
        for run in sorted({*survey.claimed, *survey.swept} - (survey.lists.keys() - set(old))):
            if store.head(names.condemned_key(run)) is None:
                store.delete([names.claimed_key(run), names.swept_key(run)])
        store.delete(stem.key for stem in survey.damaged)  # checked: what they note is mended or gone

    # --- deleting -----------------------------------------------------------------------------

    def _check_fuse(self, sizes: Iterable[int]) -> bool:
        """Whether more would go than should without a second look.

        Raises:
            ValueError: so it is, this is no dry run, and `force` was not given.
        """
        going, stored = sum(sizes), self.survey.bytes
        if going <= FUSE * stored:
            return False
        if not self.dry_run and not self.force:
            raise ValueError(
                f"gc would collect {format_bytes(going)} of {format_bytes(stored)} in {self.store.url}, over "
                f"{FUSE:.0%}: look at what dry_run=True reports, then pass force=True"
            )
        return True

    def _delete(self, objects: Iterable[Object]) -> None:
        """Delete objects that nothing names, documents first; none is tried twice."""
        ordered = sorted(objects, key=lambda found: (_kind(found.key), found.key))
        for first in range(0, len(ordered), _BATCH):
            batch = ordered[first : first + _BATCH]
            failed = {} if self.dry_run else self.store.delete([found.key for found in batch])
            self.failed |= failed
            self.deleted += [found for found in batch if found.key not in failed]


# --- inside -----------------------------------------------------------------------------------


def _grace(refs: Refs, asked: float | str | None, no_writers: bool) -> float:
    """The seconds to wait, once the lake is known to be one that this release may change."""
    refs.info()
    document = documents.parse(refs.store.get(names.LAKE), names.LAKE)
    documents.check_fields(document, _LAKE_FIELDS, names.LAKE, writing=True)
    documents.check_needs(document["needs"], names.LAKE, writing=True)
    usual = max(parse_duration(document["grace"]), LEAST_GRACE)
    wanted = usual if asked is None else parse_duration(asked)
    if wanted < usual and not no_writers:
        raise ValueError(
            f"a grace of {wanted:,.0f} s is shorter than the lake's {usual:,.0f} s: writers may count on objects "
            "for so long. no_writers=True says that there are none"
        )
    return wanted


def _kind(key: str) -> int:
    parsed = names.parse_key(key)
    return _ORDER.get(parsed.kind, len(_ORDER)) if parsed else len(_ORDER)


def _noted(store: Store, survey: Survey) -> list[str]:
    """The stems of what `verify` found damaged."""
    noted = [store.get(found.key).decode() for found in survey.damaged]
    return [names.stem(key) for key in noted if names.parse_key(key) is not None]


def _is_sound(store: Store, stem: str) -> bool:
    """Whether some copy of the object is what its digest says; reads it."""
    digest = stem.rpartition("/")[2]
    return any(documents.sha256_hex(store.get(copy.key)) == digest for copy in copies_of(store, stem))
