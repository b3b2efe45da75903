"""A lake: what is done to its datasets, as look-ups and one-line delegations to the modules that do the work."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lake import (
    config,
    derive,
    edit,
    expire,
    gc,
    history,
    lock,
    repair,
    resolve,
    stores,
    unfinished,
    verify,
    write,
)
from lake.cache import Cache
from lake.columns import add_columns, update_rows
from lake.commit import Signature, prepare
from lake.compute import compute_columns
from lake.convert import Source, read
from lake.dataset import Dataset, Reference
from lake.diff import Diff, diff
from lake.errors import NotFoundError
from lake.format import names
from lake.format.values import LogEntry
from lake.gc import GcReport
from lake.pipeline import Pipeline
from lake.pull import Pulled, pull
from lake.refs import Refs
from lake.repair import Repair
from lake.snapshot import Snapshot, Version
from lake.stores import Store
from lake.verify import Level, Report

if TYPE_CHECKING:
    import duckdb

    from lake.catalog import Catalog

_log = logging.getLogger("lake")


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_budget: int | str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    anonymous: bool = False,
    single_writer: bool = False,
    progress: bool | None = None,
) -> Lake:
    """The lake at `url`: a folder, `s3://bucket/prefix`, or None for the one that the configuration names.

    Asks the store nothing yet and creates nothing; the first commit makes a lake where there is none.
    `cache_budget`: bytes, "60GB", "unlimited" or "auto" (half of the free disk). `single_writer`: promise
    that nobody else writes, which a store without conditional writes needs. `progress`: bars on long work;
    None shows them on a terminal.

    Raises:
        ConfigError: a setting that cannot be used, naming where it was set.
    """
    settings = config.resolve(
        url,
        cache_dir=cache_dir,
        cache_budget=cache_budget,
        endpoint_url=endpoint_url,
        region=region,
        anonymous=anonymous,
    )
    store = stores.open_store(
        settings.url,
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        anonymous=settings.anonymous,
        single_writer=single_writer,
    )
    return Lake(store, settings, single_writer=single_writer, progress=progress)


class Lake:
    """One store prefix holding many datasets. Made by `lake.open`; safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        settings: config.Settings,
        *,
        single_writer: bool = False,
        progress: bool | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.single_writer = single_writer
        self.progress = progress
        self._told: set[tuple[str, str]] = set()  # pins that differ from their heads, said once

    @property
    def url(self) -> str:
        """Where the lake is."""
        return self.store.url

    def __repr__(self) -> str:
        return f"lake.open({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.store, self.settings, self.single_writer, self.progress)

    @cached_property
    def cache(self) -> Cache:
        """The machine's cache, shared with every process that uses the same folder."""
        return Cache(self.settings.cache_dir, self.settings.cache_budget)

    @cached_property
    def refs(self) -> Refs:
        """The lake's documents."""
        return Refs(self.store, self._cache_used)

    @property
    def _unfinished(self) -> Path:
        """Where finished shards of unfinished calls are remembered: beside the cache, which deletes files."""
        return self.settings.cache_dir.with_name(f"{self.settings.cache_dir.name}.unfinished")

    @cached_property
    def _catalog(self) -> Catalog:
        from lake.catalog import Catalog  # DuckDB takes its time, and only SQL needs it

        return Catalog(self)

    @property
    def _cache_used(self) -> Cache | None:
        """The cache; None where the store is a folder of this machine, which is read in place."""
        return None if self.store.local_path(names.LAKE) is not None else self.cache

    # --- writing ------------------------------------------------------------------------------

    def init(self) -> None:
        """Create the lake, unless it exists."""
        prepare(self.refs, single_writer=self.single_writer)

    def commit(
        self,
        name: str,
        data: Any,
        *,
        mode: Literal["overwrite", "append"] | None = None,
        key: str | EllipsisType | None = ...,
        order: Literal["given", "shuffled"] | None = None,
        labels: bool = False,
        schema: pa.Schema | None = None,
        meta: Mapping[str, Any] | None = None,
        recipe: Any = None,
        message: str | None = None,
        txn: str | None = None,
        expect: str | Version | Dataset | EllipsisType | None = ...,
        shard_bytes: int | str = "64MiB",
        progress: bool | None = None,
    ) -> Version:
        """Make `data` the dataset's next version: all of it ("overwrite", the default) or more of it ("append").

        Identical data is stored once, and an edit uploads only the shards it touches. A commit of what the
        head already holds writes nothing and returns the head.

        Args:
            name: the dataset; made if it does not exist.
            data: a folder (of files, of MDS shards, or of Hugging Face's `save_to_disk`), archives (WebDataset's
                shards), Parquet, CSV, JSONL, Arrow, NumPy or safetensors files (a path, glob or URL), a table or
                stream (pyarrow, polars, pandas, DuckDB), a Hugging Face dataset, or an iterable of
                `(key, {field: value})`.
            key: the key column. By default the head's on an append, else `key` if there is one. None: no key.
            order: "shuffled" stores the rows in a random order by the hash of their key.
            labels: the first directory of a folder or archive is the class.
            schema: what the columns shall be; otherwise inferred.
            meta, recipe: JSON kept with the version; None keeps the head's on an append.
            txn: makes the commit idempotent: the same txn again returns the first version. Needs `mode`.
            expect: the version id that must still be the head, or None for whatever is there. By default the
                head seen when the call began; an append goes on top of newer ones in any case.
            shard_bytes: raw bytes of a shard; an append keeps the dataset's.

        Raises:
            SchemaError: a value that does not fit, with its key, field and both types.
            ConflictError: somebody else moved the head.
            CommitStateUnknown: the store stopped answering; `error.txn` finds out later.
        """
        signature = Signature.of(txn, message)
        asked = write.request(
            name,
            mode=mode,
            key=key,
            meta=meta,
            recipe=recipe,
            signature=signature,
            expect=expect,
            shard_bytes=shard_bytes,
            may_be_empty=schema is not None,
        )
        source = partial(self._source, data, order=order, labels=labels, schema=schema)
        shown = self.progress if progress is None else progress
        entry = write.write(self.refs, asked, source, single_writer=self.single_writer, progress=shown)
        made = self._version(name, entry)
        if entry.txn == signature.txn:
            return made
        _log.log(
            logging.WARNING if message else logging.INFO,
            "%s: the head, #%s, holds this already",
            name,
            entry.seq,
        )
        return replace(made, bytes_new=0, bytes_reused=made.bytes)

    def derive(
        self,
        name: str,
        pipeline: Pipeline,
        *,
        tag: str | None = None,
        meta: Mapping[str, Any] | None = None,
        recipe: Any = None,
        message: str | None = None,
        shard_bytes: int | str = "64MiB",
    ) -> Dataset:
        """The dataset that a pipeline of samples gives: computed if this is the first time, else found.

        What is found is the version that the same pipeline, by its fingerprint, gave before: the same data, stages,
        parameters and code of functions. Otherwise epoch 0 of the pipeline is committed over the head. A version
        that was expired, or lost objects, is computed again.

        Args:
            name: the dataset; made if it does not exist, and not one that the pipeline reads.
            pipeline: its items are samples `(key, {field: value})`. Where it was iterated to makes no difference.
            tag: enters the fingerprint, and stands for what cannot be pinned down.
            meta, recipe: JSON kept with a version that is computed now; one that is found keeps its own.
            shard_bytes: raw bytes of a shard that is computed now.

        Raises:
            NotReproducibleError: a seed that nobody chose, or a value that cannot be pinned down; names the stage.
        """
        entry = derive.derive(
            self.refs,
            name,
            pipeline,
            tag=tag,
            meta=meta,
            recipe=recipe,
            message=message,
            shard_bytes=shard_bytes,
            single_writer=self.single_writer,
            progress=self.progress,
        )
        return Dataset(self, self._snapshot(name, entry))

    # --- looking up ---------------------------------------------------------------------------

    def datasets(self) -> list[str]:
        """Names of the datasets, sorted."""
        return self.refs.datasets()

    def dataset(self, reference: Reference) -> Dataset:
        """The dataset, at its head or at the version that follows an `@`: see `lake.resolve`.

        Raises:
            NotFoundError: no such dataset or version; names the nearest.
            VersionExpired: that version was expired.
        """
        name, entry, passed_over = self._found(reference)
        return Dataset(self, self._snapshot(name, entry), passed_over)

    # --- history ------------------------------------------------------------------------------

    def tag(self, reference: Reference, tag: str, *, message: str | None = None) -> Version:
        """Give a version (of a plain name: the head) an immutable name, which also keeps it from expiring.

        Raises:
            ConflictError: the dataset has this tag on another version.
        """
        name, entry = self._head_or(reference)
        signature = Signature.of(None, message)
        history.tag(self.refs, name, entry, tag, signature, single_writer=self.single_writer)
        return self._version(name, entry)

    def untag(self, name: Reference, tag: str) -> None:
        """Take a tag away.

        Raises:
            NotFoundError: the dataset has no such tag.
        """
        history.untag(self.refs, resolve.split(name)[0], tag)

    def tags(self, name: Reference) -> dict[str, str]:
        """The dataset's tags and the version id that each names."""
        return {
            tag: str(found["version"])
            for tag, found in history.tags(self.refs, resolve.split(name)[0]).items()
        }

    def pin(self, reference: Reference) -> Version:
        """Make this project read a version (of a plain name: the head): `lake.lock` says so, and gc spares it.

        The lake keeps one pin of a version for all projects that read it; what several rely on for long has a tag.
        """
        name, entry = self._head_or(reference)
        history.pin(self.refs, name, entry, Signature.of(None, None), single_writer=self.single_writer)
        version = self._version(name, entry)
        lock.pin(name, version.id)
        return version

    def unpin(self, reference: Reference) -> None:
        """Let this project read the head again, and gc have the version; of a plain name: what `lake.lock` says.

        That was the protection of every project that pinned the version: their `lake.lock` still names it, and the
        log keeps it until it is expired. They pin it again; or it has a tag, which `unpin` leaves alone.

        Raises:
            NotFoundError: neither `lake.lock` nor the lake has such a pin.
        """
        name, selector = resolve.split(reference)
        pinned = lock.read().get(name)
        version = pinned if selector is None else resolve.find(self.refs, name, selector).version
        if version is None:
            raise NotFoundError(f"{name!r} is not in {lock.path()}")
        if not history.unpin(self.refs, name, version) and version != pinned:
            raise NotFoundError(f"{name}@{version[:12]} is not pinned")
        if version == pinned:
            lock.unpin(name)

    def rollback(self, name: Reference, to: Reference, *, message: str | None = None) -> Version:
        """Make an earlier version the head again; the log keeps what came since.

        `to`: what may follow an `@`, or a `Version` of the dataset.
        """
        name = resolve.to_change(self.refs, name)
        selector = resolve.selector_of(name, to)
        signature = Signature.of(None, message)
        return self._version(
            name, history.rollback(self.refs, name, selector, signature, single_writer=self.single_writer)
        )

    def copy(self, reference: Reference, name: str, *, message: str | None = None) -> Version:
        """Make a version the first of the new dataset `name`; no data moves."""
        source, entry, _ = self._found(reference)
        signature = Signature.of(None, message)
        made = history.copy(self.refs, source, entry, name, signature, single_writer=self.single_writer)
        return self._version(name, made)

    def remove(self, name: Reference, *, message: str | None = None) -> None:
        """End the dataset. Its log stays, and a later commit begins a new life; gc takes what nothing else names."""
        name = resolve.to_change(self.refs, name)
        history.remove(self.refs, name, Signature.of(None, message), single_writer=self.single_writer)

    def expire(
        self,
        name: str,
        *,
        keep: int | None = None,
        older_than: float | str | None = None,
        version: str | None = None,
        dry_run: bool = True,
    ) -> list[LogEntry]:
        """The log entries whose versions are given up, newest first; without `dry_run=False` nothing changes.

        An entry goes only if it is not among the `keep` newest and is older than `older_than` ("30d"); one rule
        is enough. `version`, instead, is one version: what may follow an `@`. The head, tags and pins stay.
        """
        return expire.expire(
            self.refs,
            resolve.split(name)[0],
            keep=keep,
            older_than=older_than,
            version=None if version is None else resolve.selector_of(resolve.split(name)[0], version),
            dry_run=dry_run,
            single_writer=self.single_writer,
        )

    def gc(
        self,
        *,
        dry_run: bool = True,
        force: bool = False,
        no_writers: bool = False,
        grace: float | str | None = None,
    ) -> GcReport:
        """Collect what no version reaches: what this call lists goes with a call at least one grace later.

        Without `dry_run=False` nothing changes. `force`: even over 30 % of all bytes. `no_writers` says that
        nobody writes or collects meanwhile; `grace` may then be shorter than the lake's, or 0.

        Raises:
            IntegrityError: the lake is damaged; `verify` shows where.
        """
        return gc.gc(
            self.refs,
            dry_run=dry_run,
            force=force,
            no_writers=no_writers,
            grace=grace,
            single_writer=self.single_writer,
        )

    def verify(self, level: Level = "exists", name: Reference | None = None) -> Report:
        """All damage in the lake, or in one dataset, and the versions that it hurts.

        `level`: "refs" reads every document, "exists" also looks whether every part is stored with its size,
        "sample" also reads some of them, "full" all.
        """
        dataset = None if name is None else resolve.split(name)[0]
        return verify.verify(self.refs, level=level, name=dataset, progress=self.progress)

    def repair(
        self,
        name: Reference,
        *,
        source: str | os.PathLike[str] | Lake | None = None,
        pipeline: Pipeline | None = None,
        tag: str | None = None,
        drop: bool = False,
        dry_run: bool = True,
        message: str | None = None,
    ) -> Repair:
        """Mend a dataset's damage with sound bytes from `source` (another copy of the lake, or its URL) or the cache.

        `pipeline`, with the `tag` it had: by which the dataset was derived; what the others have not is computed
        again. `drop`: what is lost for good is given up by a new version without those shards. Nothing is edited
        in place or deleted; without `dry_run=False` nothing changes at all.

        Raises:
            NotFoundError: no lake at `source`, or no version of the dataset was derived by that pipeline.
        """
        recompute = None
        if pipeline is not None:
            derive.check_derived(self.refs, resolve.split(name)[0], pipeline, tag)
            recompute = partial(self.derive, resolve.split(name)[0], pipeline, tag=tag, message=message)
        return repair.repair(
            self.refs,
            resolve.split(name)[0],
            Signature.of(None, message),
            source=self._store_of(source),
            cache=self._cache_used,
            recompute=recompute,
            drop=drop,
            dry_run=dry_run,
            single_writer=self.single_writer,
            progress=self.progress,
        )

    # --- changing rows and columns --------------------------------------------------------------

    def delete_rows(self, name: Reference, where: Any, *, message: str | None = None) -> Version:
        """Take out the rows that meet `where` (SQL text or pyarrow expression); only shards hit are written."""
        work, signature = self._work(name), Signature.of(None, message)
        return self._version(work.name, edit.delete_rows(work, where, signature, progress=self.progress))

    def update_rows(
        self, name: Reference, data: Any, *, insert: bool = False, message: str | None = None
    ) -> Version:
        """Replace values in the rows whose keys `data` has: only its columns, only their parts of the shards hit.

        Raises:
            NotFoundError: a key that no row has, unless `insert` appends it with its other columns null.
            ValueError: the dataset has no key, or `data` has a key twice.
        """
        work, signature = self._work(name), Signature.of(None, message)
        source = self._source(data, key=... if work.document.key else None)
        return self._version(
            work.name, update_rows(work, source, signature, insert=insert, progress=self.progress)
        )

    def add_columns(
        self,
        name: Reference,
        data: Any,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 1024,
        where: Any = None,
        message: str | None = None,
    ) -> Version:
        """Put columns beside those there, in parts of their own; no other byte is written.

        `data`: anything `commit` takes, joined by key (rows without one stay null) or, without a key column, by
        position; or `fn(RecordBatch)` giving a batch, table or dict of arrays, which gets only `columns`, in
        batches of at most `batch_size` rows. Finished shards are kept until the commit: the same call after a
        crash goes on. `where`: only rows that meet it get values, the others keep theirs.
        """
        work, signature = self._work(name), Signature.of(None, message)
        if not callable(data):
            source = self._source(data, key=... if work.document.key else None)
            return self._version(
                work.name, add_columns(work, source, signature, where=where, progress=self.progress)
            )
        token = unfinished.call_token(data, self.refs.info().id, work.name, columns, batch_size, where)
        entry = compute_columns(
            work,
            data,
            signature,
            columns=columns,
            batch_size=batch_size,
            where=where,
            kept=self._unfinished / token if token else None,
            progress=self.progress,
        )
        return self._version(work.name, entry)

    def drop_columns(self, name: Reference, columns: Sequence[str], *, message: str | None = None) -> Version:
        """Take columns out; no data is read or written, and earlier versions keep them."""
        work = self._work(name)
        return self._version(work.name, edit.drop_columns(work, columns, Signature.of(None, message)))

    def compact(self, name: Reference, *, message: str | None = None) -> Version:
        """Cut all rows anew: many small appends become full shards, exactly those of an overwrite."""
        work, signature = self._work(name), Signature.of(None, message)
        return self._version(work.name, edit.compact(work, signature, progress=self.progress))

    def log(self, name: Reference) -> list[LogEntry]:
        """The dataset's history, newest first."""
        name, _ = resolve.split(name)
        return self.refs.entries(name) or _raise(resolve.missing_dataset(self.refs, name))

    def versions(self, name: Reference) -> list[Version]:
        """The dataset's versions since it last came into being, newest first, without expired ones."""
        name, _ = resolve.split(name)
        return self.refs.each(partial(self._version, name), resolve.living(self.log(name)))

    def diff(self, before: Reference, after: Reference) -> Diff:
        """What differs from one version to another: rows by key, columns, meta, stored bytes.

        Only shards that differ are read, and of those only the parts that do.
        """
        return diff(self.dataset(before).snapshot, self.dataset(after).snapshot)

    def pull(self, reference: Reference, *, columns: Sequence[str] | None = None) -> Pulled:
        """Bring a version, or some columns of it, onto this machine: reading it then needs no network.

        Raises:
            BudgetError: it does not fit the cache; nothing was fetched.
        """
        return pull(self.dataset(reference).snapshot, columns=columns, progress=self.progress)

    def sql(
        self, query: str, params: Mapping[str, Any] | Sequence[Any] | None = None, **tables: Any
    ) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation: datasets by name (`birds`, `"birds@v1"`), `lake.*` and your own frames are tables."""
        return self._catalog.sql(query, params, **tables)

    def _work(self, reference: Reference) -> edit.Work:
        name = resolve.to_change(self.refs, reference)
        return edit.Work.on(self.refs, name, self._cache_used, single_writer=self.single_writer)

    def _store_of(self, source: str | os.PathLike[str] | Lake | None) -> Store | None:
        """Another lake's store, reached like this one's."""
        if source is None:
            return None
        if isinstance(source, Lake):
            return source.store
        access = self.settings
        return stores.open_store(
            source, endpoint_url=access.endpoint_url, region=access.region, anonymous=access.anonymous
        )

    def _source(self, data: Any, **how: Any) -> Source:
        """The caller's data as a stream of batches; a bucket is reached as the lake's own."""
        access = self.settings
        return read(
            data, endpoint_url=access.endpoint_url, region=access.region, anonymous=access.anonymous, **how
        )

    def _found(self, reference: Reference) -> tuple[str, LogEntry, LogEntry | None]:
        """What `lock.find` says, which is logged where the lock passes over a newer head: once."""
        name, entry, head = lock.find(self.refs, reference)
        if head is not None and (name, str(entry.version)) not in self._told:
            self._told.add((name, str(entry.version)))
            text = "%s: %s says #%d %s, the head is #%d %s"
            ids = str(entry.version)[:12], str(head.version)[:12]
            _log.warning(text, name, lock.path(), entry.seq, ids[0], head.seq, ids[1])
        return name, entry, head

    def _head_or(self, reference: Reference) -> tuple[str, LogEntry]:
        """The entry meant, the head where none is named: what is written or protected is never what a lock says."""
        name, selector = resolve.split(reference)
        return name, resolve.find(self.refs, name, selector)

    def _snapshot(self, name: str, entry: LogEntry) -> Snapshot:
        return Snapshot(self.refs, self._cache_used, name, entry)

    def _version(self, name: str, entry: LogEntry) -> Version:
        assert entry.version is not None
        return Version.of(name, entry, self.refs.version(name, entry.version))


def _reopen(store: Store, settings: config.Settings, single_writer: bool, progress: bool | None) -> Lake:
    return Lake(store, settings, single_writer=single_writer, progress=progress)


def _raise(error: Exception) -> Any:
    raise error
