"""One result per item: map, star_map, decode, to_tuple, zip_with; and maybe, which leaves some items as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

from lake import codecs
from lake.pipeline.ahead import Calling
from lake.pipeline.call import Call
from lake.pipeline.node import Counts, Node, RowShuffle, Run, StageMeter, Uncountable, below, name_of
from lake.pipeline.seeds import Seed, unit, word
from lake.pipeline.stage import OneForOne, Stage
from lake.pipeline.zipped import Zip


@dataclass(frozen=True, eq=False)
class Map(Calling):
    """What a function makes of each item."""

    name: ClassVar[str] = "map"
    one_for_one: ClassVar[bool] = True

    def open(self, run: Run) -> Stage:
        return self.results(run)

    def count(self, counts: Counts, epoch: int) -> float:
        if not self.call.keeps_count:
            raise Uncountable(f"{self.label} with on_error='skip' makes the number of items unknown")
        return counts.of(self.source, epoch)

    def shuffled(self, shuffle: RowShuffle) -> Node | None:
        return below(self, shuffle)


@dataclass(frozen=True)
class Decoding:
    """Fields of a sample through functions. Nulls stay what they are."""

    fields: Mapping[str, Callable[[Any], Any]]

    @classmethod
    def of(cls, fields: Mapping[str, str | Callable[[Any], Any]]) -> Decoding:
        """Codecs by name, and functions."""
        if not fields:
            raise ValueError("decode() takes fields: decode(jpg='image')")
        return cls({name: _codec(name, chosen) for name, chosen in fields.items()})

    @property
    def __name__(self) -> str:
        return ", ".join(f"{name}={name_of(fn)}" for name, fn in self.fields.items())

    def __call__(self, sample: Any, *more: Any) -> Any:
        key, values = sample
        values = dict(values)
        for name, fn in self.fields.items():
            if name not in values:
                raise ValueError(f"no field {name!r} in the sample; there are {', '.join(values)}")
            if values[name] is not None:
                values[name] = fn(values[name], *more)
        return key, values


def _codec(name: str, chosen: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    if callable(chosen):
        return chosen
    if chosen not in codecs.__all__:
        raise ValueError(f"no codec {chosen!r} for {name!r}; there are {', '.join(codecs.__all__)}")
    found: Callable[[Any], Any] = getattr(codecs, chosen)
    return found


@dataclass(frozen=True)
class Fields:
    """Fields of a sample as a tuple."""

    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return ", ".join(self.names)

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        _, values = sample
        try:
            return tuple([values[name] for name in self.names])
        except KeyError as error:
            raise ValueError(
                f"no field {error.args[0]!r} in the sample; there are {', '.join(values)}"
            ) from None


@dataclass(frozen=True, eq=False)
class Maybe(Node):
    """A function of some of the items: of a fraction `p`, or with a chance that depends on the item."""

    name: ClassVar[str] = "maybe"
    one_for_one: ClassVar[bool] = True
    source: Node
    fn: Callable[[Any], Any]
    p: float | Callable[[Any], float]
    seed: Seed

    @property
    def label(self) -> str:
        return f"maybe({name_of(self.fn)})"

    @property
    def outline(self) -> str:
        p = name_of(self.p) if callable(self.p) else self.p
        return f"maybe({name_of(self.fn)}, {p}, {self.seed})"

    def open(self, run: Run) -> Stage:
        return _Maybe(self.source.open(run), self, run.meter(self))

    def count(self, counts: Counts, epoch: int) -> float:
        return counts.of(self.source, epoch)

    def shuffled(self, shuffle: RowShuffle) -> Node | None:
        return below(self, shuffle)


class _Maybe(OneForOne):
    def __init__(self, source: Stage, node: Maybe, meter: StageMeter) -> None:
        super().__init__(source)
        self._fn, self._p, self._seed, self._depth = node.fn, node.p, node.seed, node.depth
        self._call, self._meter = Call(node.fn, "maybe"), meter

    def next(self) -> Any:
        item = self._source.next()
        self._meter.items += 1
        begun = perf_counter()
        try:
            p = self._p(item) if callable(self._p) else self._p
            if unit(word(self._seed, self._depth, self._source.tag())) < p:
                item = self._fn(item)
        except Exception as error:
            self._call.failed(error, item, self._meter)
        self._meter.seconds += perf_counter() - begun
        return item


@dataclass(frozen=True, eq=False)
class MaybeBy(Node):
    """A function of some of the items, with chances that another stream gives; ends with the shorter one."""

    name: ClassVar[str] = "maybe"
    source: Node
    chances: Node
    fn: Callable[[Any], Any]
    seed: Seed

    @property
    def outline(self) -> str:
        return f"maybe({name_of(self.fn)}, {self.seed})"

    def open(self, run: Run) -> Stage:
        chosen = Chosen(self.fn, self.seed, self.depth)
        return _MaybeBy(Zip((self.source, self.chances)).open(run), chosen, run.meter(self))


@dataclass(frozen=True)
class Chosen:
    """A function that is called by chance."""

    fn: Callable[[Any], Any]
    seed: Seed
    depth: int


class _MaybeBy(OneForOne):
    def __init__(self, pairs: Stage, chosen: Chosen, meter: StageMeter) -> None:
        super().__init__(pairs)
        self._chosen, self._meter = chosen, meter

    def next(self) -> Any:
        item, p = self._source.next()
        chosen = self._chosen
        self._meter.items += 1
        if unit(word(chosen.seed, chosen.depth, self._source.tag())) < p:
            try:
                return chosen.fn(item)
            except Exception as error:
                Call(chosen.fn, "maybe").failed(error, item, self._meter)
        return item
