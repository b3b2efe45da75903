"""DuckDB over a lake: `lake.*` describes it, and every dataset is a table of its own name.

A statement may ask and nothing else: it sees the lake and the tables it was given, opens no file or URL,
loads no extension and changes no setting. Rows come through `Dataset.scan`, which gets the columns and the
filter that DuckDB pushes down.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads

from lake import sandbox
from lake.catalog import relations
from lake.catalog.files import statements
from lake.catalog.mentions import Mention, mentions
from lake.catalog.objects import stored_objects
from lake.catalog.tables import Table, table
from lake.errors import NotFoundError, SchemaError
from lake.virtual import VirtualDataset

Error = duckdb.Error
Mistake = (  # an Error that is the statement's own, whatever the rows are: of syntax or names
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.BinderException,
    duckdb.CatalogException,
)
Params = Mapping[str, Any] | Sequence[Any] | None

INSTALLED: Final = (  # each after what it uses
    ("macros", ("size_text", "share")),
    ("views", ("datasets", "log", "versions", "shards", "columns", "tags", "derived", "objects", "cache")),
    ("macros", ("parts",)),
)
VIEWS: Final = INSTALLED[1][1]
RELATIONS: Final = (*VIEWS, *INSTALLED[2][1])
_OF_LAKE: Final = frozenset(RELATIONS) - {"cache"}

_ASKING: Final = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI)
_QUESTIONS: Final = frozenset(
    ["select", "from", "with", "values", "table", "describe", "desc", "show", "summarize", "pivot", "unpivot"]
)
_EXPLAINING: Final = frozenset(  # may come before
    ["explain", "analyze", "format", "default", "json", "text", "yaml", "html", "graphviz", "mermaid"]
)

_PARSE: Final = "select json_serialize_sql($1)"

_KEPT: Final = 8  # datasets that were asked for last, which stay open
_KEPT_TEXTS: Final = 64  # statements whose parse is kept, the last that were asked
_KEPT_CHARS: Final = 1 << 16  # of a parse that is kept, at most

_K = TypeVar("_K")
_V = TypeVar("_V")

_failures: deque[Exception] = deque(maxlen=16)


class Lake(relations.Lake, Protocol):
    """What a catalog needs of a lake."""

    def dataset(self, reference: str, /) -> Table: ...

    def datasets(self) -> list[str]: ...


class Catalog:
    """The lake as a database. Safe to use from several threads, and after a fork."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._root: tuple[int, duckdb.DuckDBPyConnection] | None = None  # and the process that made it
        self._known: OrderedDict[tuple[str, str], _Shown] = OrderedDict()  # by name and version
        self._parsed: OrderedDict[str, str] = OrderedDict()  # by text

    def sql(self, query: str, params: Params = None, **tables: Any) -> duckdb.DuckDBPyRelation:
        """The answer to one SELECT, DESCRIBE, SUMMARIZE, PIVOT or EXPLAIN, computed when it is fetched.

        `params` fill `$name` (a mapping) or `?` (a sequence). `tables` are frames by name: Arrow, polars,
        pandas, or a dataset of any lake; they go before the lake's datasets. A failure of a scan that is met
        while rows are fetched comes as DuckDB's error with its text; `cause_of` gives the original.

        Raises:
            NotFoundError: the statement names a dataset, version or relation that is not there; or there is no lake.
            SchemaError: it names a table with columns that differ in nothing but case.
            ValueError: it is not one statement, or one that would change something.
            catalog.Error: DuckDB cannot make sense of it.
        """
        _check_types(query, params)
        session = self._session()
        _check_asks(session, query, params)
        if "lake" in query.lower():  # else it can name no relation of that schema
            self._register_relations(session)
        for name, frame in tables.items():
            _register(session, name, frame)
        missing = self._attach(session, query, params, frozenset(name.lower() for name in tables))
        try:
            return session.sql(query, params=params)
        except duckdb.CatalogException:
            if missing is not None:
                raise missing from None
            raise
        except duckdb.Error as error:
            if (cause := cause_of(error)) is not error:
                raise cause from error
            raise

    # --- inside -------------------------------------------------------------------------------

    def _session(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own, so that one statement's tables are not another's."""
        with self._lock:
            if self._root is None or self._root[0] != os.getpid():
                self._root = os.getpid(), self._install()
            return self._root[1].cursor()

    def _install(self) -> duckdb.DuckDBPyConnection:
        root = sandbox.connect()
        root.execute("create schema lake")
        registered = self._register_relations(root)
        for kind, names in INSTALLED:
            for name in names:
                root.execute(statements(kind)[name].text)
        root.execute("set lock_configuration = true")
        for name in registered:
            root.unregister(name)  # a database that holds its lake, which holds the database, would never go
        return root

    def _register_relations(self, session: duckdb.DuckDBPyConnection) -> list[str]:
        """The tables that the views read. No dataset has such a name: theirs begin with a letter or digit."""
        tables = {name: relations.virtual(self._lake, of) for name, of in relations.RELATIONS.items()}
        tables |= {"_objects": stored_objects(self._lake), "_cache": relations.cached_files(self._lake)}
        for name in tables:
            session.register(name, _noted(tables[name]))
        return list(tables)

    def _attach(
        self, session: duckdb.DuckDBPyConnection, query: str, params: Params, given: frozenset[str]
    ) -> NotFoundError | None:
        """Make tables of the datasets that the query names; the error to raise should DuckDB miss a table."""
        filled = dict(params if isinstance(params, Mapping) else _numbered(params))
        named = mentions(self._parse(session, query), filled)
        if named is None:
            named = self._guessed(query)
        if any(mention.schema == "lake" and mention.name in _OF_LAKE for mention in named):
            self._lake.refs.info()  # NotFoundError where there is none; from a scan it would come as DuckDB's
        missing = None
        for mention in sorted(named):
            if mention.name.lower() in given and not mention.schema:
                continue
            try:
                self._attach_one(session, mention)
            except NotFoundError as error:
                missing = missing or error
        return missing

    def _parse(self, session: duckdb.DuckDBPyConnection, query: str) -> str:
        """DuckDB's parse of the query, which depends on nothing but its text."""
        with self._lock:
            parsed = self._parsed.get(query)
        if parsed is None:
            [(parsed,)] = session.execute(_PARSE, [query]).fetchall()
        if len(parsed) > _KEPT_CHARS:
            return parsed
        with self._lock:
            return _kept(self._parsed, query, parsed, _KEPT_TEXTS)

    def _attach_one(self, session: duckdb.DuckDBPyConnection, mention: Mention) -> None:
        schema, name = mention
        if schema == "lake" and name not in RELATIONS:
            raise NotFoundError(f"no relation lake.{name}; {_nearest(name, RELATIONS)}")
        if schema and schema != "lake":
            raise NotFoundError(
                f'no schema {schema!r}; the name of a dataset is quoted if it has dots: "{schema}.{name}"'
            )
        if not schema:
            _register_shown(session, name, self._opened(name, self._dataset(name)))

    def _opened(self, name: str, dataset: Table) -> _Shown:
        """The same version as it was opened before, with the documents and verified parts that it has at hand."""
        place = dataset.name, dataset.version
        with self._lock:
            known = self._known.get(place)
        known = known or _shown(name, dataset)
        with self._lock:
            return _kept(self._known, place, known, _KEPT)

    def _dataset(self, reference: str) -> Table:
        """The dataset, its name spelled in any case, as SQL has it."""
        try:
            return self._lake.dataset(reference)
        except ValueError as error:
            raise NotFoundError(f"no table {reference!r}: {error}") from error
        except NotFoundError:
            name, at, selector = reference.partition("@")
            spelled = {each.lower(): each for each in self._lake.datasets()}.get(name.lower(), name)
            if spelled == name:
                raise
            return self._lake.dataset(spelled + at + selector)

    def _guessed(self, query: str) -> frozenset[Mention]:
        """Every word of the query that is the name of a dataset, whatever it means there."""
        known = {name.lower() for name in self._lake.datasets()}
        return frozenset(
            Mention("", word) for word in _words(query) if word.partition("@")[0].lower() in known
        )


def cause_of(error: BaseException) -> BaseException:
    """The error that interrupted a scan, where `error` is DuckDB's report of it; else `error`."""
    reported = str(error)
    return next((failure for failure in reversed(_failures) if str(failure) in reported), error)


def _check_asks(session: duckdb.DuckDBPyConnection, query: str, params: Params) -> None:
    """Refuse what might change something, and wrong parameters.

    The first word counts too: EXPLAIN and PIVOT hide the type.
    """
    found = session.extract_statements(query)
    if len(found) != 1:
        raise ValueError(f"one statement at a time; this text has {len(found)}")
    words = (word.lower() for word in _words(query))
    begins = next((word for word in words if word not in _EXPLAINING), "")
    if found[0].type not in _ASKING or begins not in _QUESTIONS:
        raise ValueError(
            f"{begins.upper()} is refused: a statement may only ask (SELECT, FROM, DESCRIBE, SUMMARIZE, "
            "PIVOT, EXPLAIN). To keep an answer, commit it: lk.commit(name, lk.sql(query))"
        )
    needed = set(found[0].named_parameters)
    given = set(params if isinstance(params, Mapping) else dict(_numbered(params)))
    if needed != given:
        shown = [
            ", ".join(f"${each}" for each in sorted(map(str, names))) or "none" for names in (needed, given)
        ]
        raise ValueError(f"the statement needs the parameters {shown[0]}; given: {shown[1]}")


def _numbered(params: Sequence[Any] | None) -> Iterator[tuple[str, Any]]:
    """Positional parameters under the names that DuckDB gives them."""
    return ((str(number), value) for number, value in enumerate(params or (), 1))


def _check_types(query: str, params: Params) -> None:
    if not isinstance(query, str):
        raise TypeError(f"a query is a text, not {type(query).__name__}")
    if params is None or isinstance(params, Mapping):
        return
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise TypeError(
            f"params is a mapping ($name) or a list (?), not {type(params).__name__}: [{params!r}]?"
        )


def _register(session: duckdb.DuckDBPyConnection, name: str, frame: Any) -> None:
    if name.startswith("_"):
        raise ValueError(f"table {name!r}: names that begin with '_' belong to the catalog")
    if callable(getattr(frame, "arrow", None)) and isinstance(getattr(frame, "schema", None), pa.Schema):
        _register_shown(session, name, _shown(name, frame))
        return
    try:
        session.register(name, frame)
    except (TypeError, duckdb.InvalidInputException) as error:
        raise TypeError(
            f"table {name!r}: DuckDB cannot read a {type(frame).__name__}; "
            "give an Arrow, polars or pandas table, or a dataset"
        ) from error
    _check_names(name, frame)


class _Shown(NamedTuple):
    """A dataset as DuckDB gets it: its rows, and the column of theirs that is not its own."""

    source: VirtualDataset
    hidden: str


def _shown(name: str, dataset: Table) -> _Shown:
    """The dataset made ready, under a name that a refusal of its columns says."""
    _check_names(name, dataset)
    source, hidden = table(dataset)
    return _Shown(_noted(source), hidden)


def _register_shown(session: duckdb.DuckDBPyConnection, name: str, shown: _Shown) -> None:
    """Its rows as a view of that name, over a source with one more column: see `lake.catalog.tables`."""
    session.register(f"_{name}", shown.source)
    session.execute(
        f"create or replace temporary view {_quoted(name)} as "
        f"select * exclude ({_quoted(shown.hidden)}) from {_quoted('_' + name)}"
    )


def _kept(among: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> _V:
    """What is kept under the key, which is `value` if nothing was; the one used longest ago makes room."""
    found = among.setdefault(key, value)
    among.move_to_end(key)
    if len(among) > most:
        among.popitem(last=False)
    return found


def _check_names(name: str, frame: Any) -> None:
    """Refuse columns that SQL cannot tell apart: it would give one for the other."""
    for one, other in _alike(frame):
        raise SchemaError(
            f"SQL knows no upper and lower case, so it cannot tell columns {one!r} and {other!r} of {name!r} apart: "
            "read them with scan(columns=[...]), or commit the rows with one of them renamed"
        )


def _alike(frame: Any) -> Iterator[tuple[str, str]]:
    """Pairs of columns, or of members of a struct, whose names differ in nothing but the case of A to Z."""
    if callable(describe := getattr(frame, "collect_schema", None)):  # polars
        yield from _pairs(describe().names())
    elif isinstance(schema := getattr(frame, "schema", None), pa.Schema):
        yield from _alike_fields(schema, "")
    else:
        yield from _pairs([str(column) for column in getattr(frame, "columns", ())])


def _alike_fields(fields: Iterable[pa.Field], path: str) -> Iterator[tuple[str, str]]:
    fields = list(fields)
    yield from _pairs([path + field.name for field in fields])
    for field in fields:
        inner = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        yield from _alike_fields([inner.field(i) for i in range(inner.num_fields)], f"{path}{field.name}.")


def _pairs(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    seen: dict[bytes, str] = {}
    for name in names:
        first = seen.setdefault(name.encode().lower(), name)
        if first is not name:
            yield first, name


def _noted(source: VirtualDataset) -> VirtualDataset:
    """The same rows; a failure is kept for `cause_of`, since DuckDB passes on only its text."""

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            yield from source.read(columns, where)
        except Exception as error:
            _failures.append(error)
            raise

    return VirtualDataset(source.schema, read)


def _words(query: str) -> Iterator[str]:
    """Identifiers and keywords of the query, unquoted; by DuckDB's own lexer."""
    tokens = duckdb.tokenize(query)
    ends = [start for start, _ in tokens[1:]] + [len(query.encode())]
    for (start, kind), end in zip(tokens, ends, strict=True):
        if kind in (duckdb.token_type.identifier, duckdb.token_type.keyword):
            word = query.encode()[start:end].decode().strip()
            yield word[1:-1].replace('""', '"') if word.startswith('"') else word


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known := list(known), 1)
    return f"nearest: {near[0]!r}" if near else f"known are {', '.join(known)}"
