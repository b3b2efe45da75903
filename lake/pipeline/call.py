"""Calls of the user's functions, one per item: where their randomness comes from, and what their errors do."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from lake.asked import whole
from lake.pipeline.node import FREE, KEYS_KEPT, StageMeter, name_of
from lake.pipeline.seeds import Seed, word

Rng: TypeAlias = bool | Literal["global"]
OnError: TypeAlias = Literal["raise", "skip"]
Applied: TypeAlias = Callable[[Any, Any], Any]  # of an item and its tag


@dataclass(frozen=True, eq=False)
class Call:
    """A function of an item, and how it is called."""

    fn: Callable[..., Any]
    stage: str = field(metadata=FREE)  # as the user called it
    spread: bool = False  # the item is a tuple of arguments
    rng: Rng = False
    seed: Seed | None = None
    workers: int = field(default=0, metadata=FREE)
    ordered: bool = True
    on_error: OnError = "raise"

    @classmethod
    def of(
        cls,
        stage: str,
        fn: Callable[..., Any],
        *,
        spread: bool = False,
        rng: Rng = False,
        seed: int | None = None,
        workers: int = 0,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> Call:
        """A call as a user asks for it.

        Raises:
            TypeError, ValueError: what cannot be.
        """
        if not callable(fn):
            raise TypeError(f"{stage}() takes a function, not {type(fn).__name__}")
        if rng not in (False, True, "global"):
            raise ValueError(f"{stage}(): rng is False, True or 'global', not {rng!r}")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"{stage}(): on_error is 'raise' or 'skip', not {on_error!r}")
        if whole(f"{stage}(): workers", workers) < 0:
            raise ValueError(f"{stage}(): workers is a number of threads: {workers}")
        if rng == "global" and workers:
            raise ValueError(
                f"{stage}(): threads share the global generators: rng=True with workers={workers}, or workers=0"
            )
        if seed is not None and not rng:
            raise ValueError(f"{stage}(): seed={seed} without rng means nothing")
        drawn = Seed.of(seed) if rng else None
        return cls(fn, stage, spread, rng, drawn, workers, ordered or not workers, on_error)

    @property
    def label(self) -> str:
        """The call as messages name it."""
        return f"{self.stage}({name_of(self.fn)})"

    @property
    def outline(self) -> str:
        """What a position depends on."""
        extra = [str(self.seed)] if self.seed else []
        extra += ["ordered=False"] if not self.ordered else []
        return f"{self.stage}({', '.join([name_of(self.fn), *extra])})"

    @property
    def keeps_count(self) -> bool:
        """Whether there is a result for each item."""
        return self.on_error == "raise"

    def applied(self, depth: int) -> Applied:
        """What is done with an item and its tag."""
        fn = self.fn
        called: Callable[..., Any] = (lambda item, *more: fn(*item, *more)) if self.spread else fn
        seed = self.seed
        if seed is None:
            return lambda item, tag: called(item)
        if self.rng == "global":
            return lambda item, tag: _globally(called, item, word(seed, depth, tag))
        return lambda item, tag: called(item, np.random.default_rng(word(seed, depth, tag)))

    def simple(self) -> Callable[[Any], Any] | None:
        """What is done with an item where its tag plays no part."""
        if self.seed is not None:
            return None
        fn = self.fn
        return (lambda item: fn(*item)) if self.spread else fn

    def failed(self, error: Exception, item: Any, meter: StageMeter) -> None:
        """Count an error that is to be skipped; raise any other, with where it happened.

        Raises:
            Exception: the error.
        """
        key = key_of(item)
        if self.on_error == "skip":
            meter.skipped += 1
            if len(meter.skipped_keys) < KEYS_KEPT:
                meter.skipped_keys.append(key)
            return
        where = f"in {self.label}" if key is None else f"in {self.label}, sample {key!r}"
        if isinstance(error, StopIteration):  # would end the stream in silence
            raise RuntimeError(f"StopIteration {where}") from error
        error.add_note(where)
        raise error


def key_of(item: Any) -> Any:
    """The key of a sample; None of anything else."""
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], dict):
        return item[0]
    return None


def _globally(fn: Callable[..., Any], item: Any, seed: int) -> Any:
    """Call with the global generators of `random`, NumPy and torch (where it is loaded) seeded, then as before."""
    torch: Any = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state()
    generator = None if torch is None else torch.default_generator  # that of the CPU
    tensors = None if generator is None else generator.get_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    if generator is not None:
        generator.manual_seed(seed)
    try:
        return fn(item)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if generator is not None:
            generator.set_state(tensors)
