"""Fingerprints: what changes them, what does not, and what has none."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake.dataset import Dataset
from lake.errors import NotReproducibleError


def of(fn: Callable[..., Any], **how: Any) -> str:
    """The fingerprint of a pipeline with this function."""
    return lake.from_iterable([1, 2]).map(fn, **how).fingerprint()


def compiled(source: str, name: str = "f", **globals_: Any) -> Any:
    """A function of a module of the user's."""
    space: dict[str, Any] = {"__name__": "their_module", **globals_}
    exec(textwrap.dedent(source), space)
    return space[name]


BASE = """
    def f(x, y=1):
        return x + 10
"""

SAME = {
    "on another line": "\n\n\n" + BASE,
    "with a comment": BASE.replace("return", "# why\n        return"),
}

OTHER = {
    "another constant": BASE.replace("10", "11"),
    "another operation": BASE.replace("+", "-"),
    "another default": BASE.replace("y=1", "y=2"),
    "a default of another type": BASE.replace("y=1", "y=1.0"),
    "a keyword default": BASE.replace("y=1", "*, y=1"),
    "another name of an attribute": BASE.replace("x + 10", "x.real"),
    "nested code": BASE.replace("x + 10", "(lambda: x + 10)()"),
    "other nested code": BASE.replace("x + 10", "(lambda: x + 11)()"),
}


@pytest.mark.parametrize("change", SAME)
def test_where_code_stands_changes_nothing(change: str) -> None:
    """Lines and comments are no part of it."""
    assert of(compiled(SAME[change])) == of(compiled(BASE))


def test_code_defaults_and_names_count() -> None:
    """Each edit of a function gives another fingerprint."""
    fingerprints = [of(compiled(source)) for source in [BASE, *OTHER.values()]]
    assert len(set(fingerprints)) == len(fingerprints)


@dataclass
class Scaler:
    by: Any

    def apply(self, x: Any) -> Any:
        return x * self.by


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return x


class Color(Enum):
    RED = 1
    BLUE = 2


Pair = namedtuple("Pair", ["a", "b"])


def capturing(value: Any) -> Callable[[Any], Any]:
    return lambda x: (x, value)


VALUES: list[Any] = [
    None, True, 1, 1.0, "1", b"1", 1j, [1], (1,), {1}, frozenset({1}), {1: 2}, {"1": 2}, {1: "2"}, [[1], 2],
    [1, [2]], np.int64(1), np.int32(1), np.array([1]), np.array([[1]]), np.array([1.0]), range(1), Path("1"),
    Color.RED, Color.BLUE, Pair(1, 2), Pair(2, 1), OrderedDict(a=1), np.dtype("int8"), Scaler(1), Scaler(2),
    Slotted(1), Slotted(2), float("nan"), 0.0, -0.0, len, max, str, np.sin, np, functools.partial(max, 1),
    functools.partial(max, 2), ...,
]  # fmt: skip


def test_captured_values_count_with_their_types() -> None:
    """Whatever is captured, and however like another it looks."""
    fingerprints = [of(capturing(value)) for value in VALUES]
    same = [
        (a, b)
        for (a, x), (b, y) in itertools.combinations(zip(VALUES, fingerprints, strict=True), 2)
        if x == y
    ]
    assert same == []
    assert fingerprints == [of(capturing(value)) for value in VALUES]


def test_equal_values_count_alike_whichever_objects_they_are() -> None:
    """One list twice is two equal lists; sets have no order."""
    shared = [1, 2]
    assert of(capturing((shared, shared))) == of(capturing(([1, 2], [1, 2])))
    words = [f"w{n}" for n in range(20)]
    backwards = words[::-1]
    assert of(capturing(set(words))) == of(capturing(set(backwards)))


def test_instance_state_counts_for_methods_and_callables() -> None:
    """Scaler(1).apply is not Scaler(2).apply."""
    assert of(Scaler(1).apply) == of(Scaler(1).apply) != of(Scaler(2).apply)
    assert of(Slotted(1)) == of(Slotted(1)) != of(Slotted(2))


def test_globals_that_a_function_reads_count() -> None:
    """A constant or a helper of its module, and what the helper reads."""
    source = """
        def helper(x): return x * SCALE
        def f(x): return helper(x)
    """
    same = of(compiled(source, SCALE=2))
    assert of(compiled(source, SCALE=2, UNUSED=3)) == same
    assert of(compiled(source, SCALE=3)) != same
    assert of(compiled(source.replace("x *", "x +"), SCALE=2)) != same


def test_functions_may_hold_themselves() -> None:
    """Recursion, and a list in itself."""
    source = "def f(n): return n and f(n - 1)"
    assert of(compiled(source)) == of(compiled(source)) != of(compiled(source.replace("1", "2")))
    around: list[Any] = [1]
    around.append(around)
    assert len(of(capturing(around))) == 64


def test_methods_of_a_class_count() -> None:
    """An instance's class is its code."""
    source = """
        class Callable:
            def __call__(self, x): return self.one(x)
            def one(self, x): return x + 1
        f = Callable()
        f.state = 1
    """
    same = of(compiled(source))
    assert of(compiled("\n" + source)) == same
    assert of(compiled(source.replace("x + 1", "x + 2"))) != same


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), iter([1]), np.random.default_rng(0), pa.table({"a": [1]}), object(), np.array([None])],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_pinned_down_needs_a_tag(value: Any) -> None:
    """The error names stage, value and way out; a tag stands for it, and nothing else is forgotten."""
    pipeline = lake.from_iterable([1, 2]).map(capturing(value))
    with pytest.raises(NotReproducibleError, match=r"stage 2, map\(.*captured value is a .*tag='...'"):
        pipeline.fingerprint()
    one, two = pipeline.fingerprint(tag="one"), pipeline.fingerprint(tag="two")
    assert one != two
    assert one == pipeline.fingerprint(tag="one")
    assert pipeline.batch(2).fingerprint(tag="one") != one


def test_a_seed_that_nobody_chose_has_no_fingerprint() -> None:
    """Also not with a tag: another run draws another."""
    for pipeline in (
        lake.from_iterable([1]).shuffle(),
        lake.random_stream(),
        lake.from_iterable([1]).map(lambda n, rng: n, rng=True),
        lake.mix([lake.from_iterable([1])]),
    ):
        with pytest.raises(NotReproducibleError, match=r"stage .* its seed was drawn"):
            pipeline.map(str).fingerprint(tag="x")


def test_an_order_that_differs_each_time_has_no_fingerprint() -> None:
    """Threads that hand results out as they come; a tag says that it does not matter."""
    pipeline = lake.from_iterable([1]).map(str, workers=2, ordered=False).batch(2)
    with pytest.raises(NotReproducibleError, match=r"stage 2, map\(str\): ordered=False"):
        pipeline.fingerprint()
    assert len(pipeline.fingerprint(tag="sorted later")) == 64


def test_structure_and_parameters_count_and_what_changes_no_item_does_not() -> None:
    """Which stages, in which order, over what; not how many threads."""
    a = lake.from_iterable([1, 2])
    pipelines = [
        a, lake.from_iterable([1, 3]), lake.from_iterable([2, 1]), a.map(str), a.map(str).map(str), a.filter(str),
        a.batch(2), a.batch(3), a.batch(2, drop_last=True), a.window(2), a.window(2, 1), a.shuffle(seed=1),
        a.shuffle(seed=2), a.repeat(), a.repeat(2), a.take(2), lake.zip(a, a), lake.zip(a, a, a), lake.concat([a, a]),
        lake.mix([a, a], seed=1), lake.mix([a, a], [1, 2], seed=1), lake.mix([a, a], seed=1, until="all"),
        a.map(len, on_error="skip"), a.map(len), a.scan(max, 0), a.scan(max, 1), a.pack(2), a.pack(2, split=False),
        a.star_map(len), a.maybe(str, 0.5, seed=1), a.maybe(str, 0.6, seed=1), lake.select(a, a), a.map(str).batch(2),
        a.batch(2).map(str),
    ]  # fmt: skip
    fingerprints = [pipeline.fingerprint() for pipeline in pipelines]
    assert len(set(fingerprints)) == len(fingerprints)
    assert a.map(str, workers=3).fingerprint() == a.map(str).fingerprint()


def test_sources_count_by_their_data(ds: Dataset, tmp_path: Path) -> None:
    """Not by the lake, name or version id: by what is read of them, in which order."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("copy", ds, shard_bytes="16KiB")
    lk.commit("other", pa.table({"key": ["a"], "n": [1]}))
    copy, other = lk.dataset("copy"), lk.dataset("other")
    assert copy.samples(prefetch=9).fingerprint() == ds.samples().fingerprint()
    pipelines = [
        ds.samples(), ds.samples(columns=["n"]), ds.samples(columns=["n"], where="n > 1"), other.samples(),
        ds.samples().shuffle(seed=1), ds.samples().shuffle(seed=2), ds.samples().shuffle(seed=1, full=True),
    ]  # fmt: skip
    fingerprints = [pipeline.fingerprint() for pipeline in pipelines]
    assert len(set(fingerprints)) == len(fingerprints)


def test_iterating_changes_no_fingerprint(ds: Dataset) -> None:
    """It is that of a fresh pipeline."""
    pipeline = ds.samples().shuffle(seed=1)
    fresh = pipeline.fingerprint()
    list(pipeline)
    next(iter(pipeline))
    assert pipeline.fingerprint() == fresh


def test_another_process_finds_the_same() -> None:
    """Whatever its hash seed."""
    code = (
        "import lake\n"
        "p = lake.from_iterable([1]).map(lambda x, s={'a', 'b', 'c'}: (x, s, {'d': 1.5}, 'e' in {'e', 'f', 'g'}))\n"
        "print(p.fingerprint())\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
