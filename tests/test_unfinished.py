"""What makes two calls of a function the same call, and what is remembered between them."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from lake.unfinished import call_token

SCALE = 2


def helper(value: int) -> int:
    return value + 1


def using_globals(value: int) -> int:
    return helper(value) * SCALE


def recursive(value: int) -> int:
    return value if value < 1 else recursive(value - 1)


class Twice:
    def __init__(self, base: int) -> None:
        self.base = base

    def __call__(self, value: int) -> int:
        return self.other(value)

    def other(self, value: int) -> int:
        return 2 * value + self.base


class Model:
    def __init__(self, weights: list[float]) -> None:
        self.weights = weights

    def embed(self, value: int) -> float:
        return value * self.weights[0]


def made(source: str, **names: Any) -> Callable[..., Any]:
    """The function `f` of a source text."""
    scope: dict[str, Any] = {"__name__": "made", **names}
    exec(source, scope)
    found: Callable[..., Any] = scope["f"]
    return found


def test_the_same_code_is_the_same_call_wherever_it_stands():
    """Lines and comments do not count; arguments do."""
    one = made("def f(x):\n    return x in {'a', 'b'}")
    two = made("\n\n# moved\ndef f(x):\n\n    return x in {'a', 'b'}  # still")

    assert call_token(one, "birds", 1) == call_token(two, "birds", 1) is not None
    assert call_token(one, "birds", 1) != call_token(one, "birds", 2)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (made("def f(x): return x + 1"), made("def f(x): return x + 2")),
        (made("def f(x, n=1): return n"), made("def f(x, n=2): return n")),
        (
            made("def g(x): return 1\ndef f(x): return g(x)"),
            made("def g(x): return 2\ndef f(x): return g(x)"),
        ),
        (made("def f(x): return N", N=1), made("def f(x): return N", N=2)),
        (
            made("def f(x): return [g(y) for y in x]", g=len),
            made("def f(x): return [g(y) for y in x]", g=helper),
        ),
        (Model([1.0]).embed, Model([2.0]).embed),
        (Twice(1), Twice(2)),
        (functools.partial(helper, 1), functools.partial(helper, 2)),
        (functools.partial(made("def f(x): return 1"), 1), functools.partial(made("def f(x): return 2"), 1)),
        (
            made("def h(n):\n  def f(x): return n\n  return f\nf = h(1)"),
            made("def h(n):\n  def f(x): return n\n  return f\nf = h(2)"),
        ),
    ],
    ids=[
        "constant",
        "default",
        "called",
        "global",
        "nested",
        "method",
        "object",
        "partial",
        "code of a partial",
        "closure",
    ],
)
def test_other_code_values_or_state_is_another_call(one: Any, two: Any):
    """Constants, defaults, functions that are called, globals, instances, closures."""
    assert call_token(one) != call_token(two)
    assert call_token(one) == call_token(one) is not None


def test_functions_that_call_themselves_or_each_other_end():
    """And still are what their code is."""
    assert call_token(recursive) is not None
    assert call_token(using_globals) != call_token(
        FunctionType(using_globals.__code__, {"helper": recursive}, "using_globals")
    )


def test_what_cannot_be_pickled_has_no_token(tmp_path: Path):
    """The call is then made anew after a crash."""
    with (tmp_path / "open").open("w") as file:

        def writes(value: int) -> int:
            return file.write(str(value))

        assert call_token(writes) is None


def test_the_code_of_an_objects_methods_counts(monkeypatch: pytest.MonkeyPatch):
    """Also of those that the one called calls."""
    before = call_token(Twice(1)), call_token(Twice(1).other)

    monkeypatch.setattr(Twice, "other", made("def f(self, value): return 3 * value"))

    assert before[0] != call_token(Twice(1)) is not None
    assert None not in before


def test_a_token_is_the_same_in_another_process():
    """Whatever the order of sets there: a crash is survived by what was remembered."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from tests.test_unfinished import made, Model; "
        "from lake.unfinished import call_token; "
        "f = made(\"def f(x): return x in {'a', 'b', 'c', 'd'}\"); print(call_token(f, 'birds', None))"
    )

    def token(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).parents[1])],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert token("1") == token("2") != "None\n"
