"""The members of an archive as samples, grouped by their names as a commit does it. Reads on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from lake import filenames
from lake.errors import SchemaError

if TYPE_CHECKING:
    from lake.archives.reader import Archive

Sample = tuple[str, dict[str, bytes | None]]


class Samples(Sequence[Sample]):
    """Samples `(key, {field: bytes})` in the order of their first members; a field that is absent is None.

    Hidden members are left out.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._keys: list[str] = []
        self._members: list[list[int]] = []  # of each sample, in the order in which they lie
        self._fields: list[str] = []  # of each member; empty: hidden
        places: dict[str, int] = {}
        for number, name in enumerate(archive.names):
            key, field = ("", "") if filenames.hidden(name) else filenames.split(name)
            self._fields.append(field)
            if not field:
                continue
            place = places.setdefault(key, len(self._keys))
            if place == len(self._keys):
                self._keys.append(key)
                self._members.append([])
            twin = next((n for n in self._members[place] if self._fields[n] == field), None)
            if twin is not None:
                raise SchemaError(
                    f"{archive.names[twin]!r} and {name!r} in {archive.name} are both field {field!r} of sample "
                    f"{key!r}: rename or remove one"
                )
            self._members[place].append(number)
        self.fields = tuple(sorted({field for field in self._fields if field}))

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Samples({self.archive.name!r}, {len(self)} with {', '.join(self.fields)})"

    @overload
    def __getitem__(self, number: int) -> Sample: ...
    @overload
    def __getitem__(self, number: slice) -> list[Sample]: ...
    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        members = self._members[number]
        values: dict[str, bytes | None] = dict.fromkeys(self.fields)
        for member, data in zip(members, self.archive.read_many(members), strict=True):
            values[self._fields[member]] = data
        return self._keys[number], values
