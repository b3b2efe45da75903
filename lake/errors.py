"""Every error that lake raises on its own account, as one tree.

The branches follow what a handler does, not where the error came from:

    LakeError
    ├── NotFoundError (KeyError)          correct the name, or create it
    ├── ConflictError                     look at the new head, then repeat
    ├── CommitStateUnknown                ask again later with the same txn
    ├── BudgetError                       change a number: budget, columns, shuffle
    ├── IntegrityError                    repair, or restore from another copy
    ├── SchemaError (ValueError)          correct the data or the schema
    ├── StoreError                        look at `retryable`
    ├── FormatError                       upgrade lake, or restore the document
    ├── VersionExpired                    pin or tag what must stay
    ├── ArchiveError                      the archive is damaged or hostile
    ├── ConfigError                       correct the setting it names
    └── NotReproducibleError (ValueError) pass `tag=`

A caller's mistake (a wrong type, an impossible argument) is a plain `ValueError` or `TypeError`.
Every instance survives pickling, so that it crosses process borders with its numbers.
"""

from __future__ import annotations

from typing import Any


def _rebuild(cls: type[LakeError], message: str, state: dict[str, Any]) -> LakeError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class LakeError(Exception):
    """The root: something lake was asked to do could not be done, and nothing is half-done."""

    def __str__(self) -> str:  # KeyError would print the repr of a message
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__.copy())


class NotFoundError(LakeError, KeyError):
    """A lake, dataset, version, tag, key or object that is not there."""


class ConflictError(LakeError):
    """Another writer moved the head; `retryable` says whether repeating the call is safe."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class CommitStateUnknown(LakeError):
    """The store stopped answering; the commit may have landed.

    Committing again with `txn` (the attribute) finds it if it did, and never doubles it.
    """

    def __init__(self, message: str, *, txn: str) -> None:
        super().__init__(message)
        self.txn = txn


class BudgetError(LakeError):
    """The work cannot fit the cache's budget; `needed` and `budget` are bytes, `holders` pids."""

    def __init__(self, message: str, *, needed: int, budget: int, holders: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.needed, self.budget, self.holders = needed, budget, holders


class IntegrityError(LakeError):
    """Stored bytes differ from the digest that names them; `digest` says which."""

    def __init__(self, message: str, *, digest: str = "") -> None:
        super().__init__(message)
        self.digest = digest


class SchemaError(LakeError, ValueError):
    """Data that does not fit the dataset's schema."""


class StoreError(LakeError):
    """The bucket, folder or network failed. `retryable`: the same call may succeed later."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class FormatError(LakeError):
    """A document of a newer format, or one that is not what its name says."""


class VersionExpired(LakeError):
    """The version was expired; pin or tag what a long run needs."""


class ArchiveError(LakeError):
    """An archive that is damaged, hostile or of an unknown kind; the message names the member."""


class ConfigError(LakeError):
    """A setting that cannot be used; the message names where it was set."""


class NotReproducibleError(LakeError, ValueError):
    """A pipeline whose fingerprint cannot be pinned down; `tag=` is the way out."""
