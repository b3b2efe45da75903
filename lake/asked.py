"""Numbers and names that callers give: taken as they are, or refused by the name of the argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any


def whole(argument: str, value: Any, *, least: int | None = None) -> int:
    """A whole number: an int, or what Python takes for an index, such as an integer of NumPy or torch.

    >>> whole("batch_size", 64, least=1)
    64

    Raises:
        TypeError: it is another thing, a bool or a float for instance; nothing is read or rounded.
        ValueError: less than `least`.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{argument} is a whole number, not {value!r}")
    if least is not None and number < least:
        raise ValueError(f"{argument} is {least} or more: {number}")
    return number


def listed(argument: str, value: Iterable[str]) -> list[str]:
    """Several names.

    >>> listed("columns", ("key", "label"))
    ['key', 'label']

    Raises:
        TypeError: it is one text, which would be taken apart; or no list.
    """
    if isinstance(value, str):
        raise TypeError(f"{argument} are a list of names: [{value!r}]")
    if not isinstance(value, Iterable):
        raise TypeError(f"{argument} are a list of names, not {value!r}")
    return list(value)


def by_number(stream: str) -> TypeError:
    """The error for who asks a scan or a pipeline for its item 3, as a `DataLoader` does that was given one."""
    return TypeError(
        f"a {stream} is read in order, not by number: rows by number are ds[17] and ds.take([...]); to train, take "
        f"lake.torch.loader({stream}), or DataLoader(lake.torch.as_iterable_dataset({stream}), batch_size=None)"
    )
