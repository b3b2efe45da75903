"""Which version a reference means, what it costs to find out, and what is said when there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lake
from lake import resolve
from lake.format import log, names
from lake.format.log import encode_entry
from lake.repo import Lake
from lake.stores.wrappers import CountingStore
from tests.changing import FULL, over


def numbered(path: Path | str, count: int = 4, name: str = "n", **options: Any) -> Lake:
    """A lake with a dataset of `count` versions, the last of which has that many rows."""
    lk = lake.open(path, progress=False, **options)
    for n in range(1, count + 1):
        lk.commit(name, pa.table({"x": range(n)}), key=None, message=f"rows {n}")
    return lk


def expire(lk: Lake, name: str, seq: int) -> None:
    """Make a tombstone of a log entry, as `expire` does."""
    entry = lk.refs.entry(name, seq)
    lk.store.put(names.log_key(name, seq), encode_entry(log.tombstone(entry)))


def rows(lk: Lake, reference: Any) -> int:
    return len(lk.dataset(reference))


def test_every_way_to_name_a_version(tmp_path: Path):
    """A plain name, @head, @#n, digits of an id, a date, a tag; a Version and a Dataset; all in one lake."""
    lk = numbered(tmp_path)
    versions = lk.versions("n")
    third = versions[1]
    lk.tag("n@#2", "two")

    assert [v.seq for v in versions] == [4, 3, 2, 1]
    assert rows(lk, "n") == rows(lk, "n@head") == 4
    assert [rows(lk, f"n@#{n}") for n in range(1, 5)] == [1, 2, 3, 4]
    assert rows(lk, f"n@{third.id[:8]}") == rows(lk, f"n@{third.id}") == rows(lk, third) == 3
    assert rows(lk, lk.dataset(third)) == 3
    assert rows(lk, "n@two") == 2
    assert rows(lk, f"n@{time_of(lk, 3)}") == 3
    assert rows(lk, "n@" + time_of(lk, 3).removesuffix("Z")) == 3
    assert rows(lk, "n@" + time_of(lk, 1)[:10]) == 4
    assert rows(lk, "n@2999-12-31") == 4


def time_of(lk: Lake, seq: int) -> str:
    return next(entry.time for entry in lk.log("n") if entry.seq == seq)


def test_every_call_takes_every_kind_of_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Names, versions and datasets alike, wherever a dataset is named."""
    monkeypatch.chdir(tmp_path)
    lk = numbered(tmp_path / "lake")
    first, head = lk.versions("n")[-1], lk.versions("n")[0]

    for reference in ("n", head, lk.dataset("n"), "n@head", "n@#4"):
        assert len(lk.log(reference)) == 4
        assert len(lk.versions(reference)) == 4
        assert lk.delete_rows(reference, "x < 0").seq == 4
    lk.tag(first, "one")
    assert lk.tags(lk.dataset("n")) == {"one": first.id}
    lk.untag(head, "one")
    lk.pin(first)
    assert rows(lk, "n") == 1
    lk.unpin(first)
    assert lk.copy(first, "m").rows == 1
    assert lk.rollback(head, first).rows == lk.rollback("n", "#2").rows - 1 == 1
    assert lk.rollback("n", "n@#3").rows == 3
    assert lk.rollback("n", "@#4").rows == 4
    lk.remove(lk.versions("n")[0])
    assert lk.datasets() == ["m"]


def test_changes_begin_with_the_head(tmp_path: Path):
    """Naming an older version does not change, or remove, the head in its place."""
    lk = numbered(tmp_path)
    first = lk.versions("n")[-1]

    for change in (
        lambda: lk.remove("n@#1"),
        lambda: lk.delete_rows(first, "true"),
        lambda: lk.drop_columns("n@#2", ["x"]),
        lambda: lk.compact(lk.dataset("n@#3")),
        lambda: lk.add_columns(first, pa.table({"y": [1]})),
        lambda: lk.rollback(first, "#2"),
    ):
        with pytest.raises(lake.ConflictError, match="is not the head"):
            change()
    assert len(lk.log("n")) == 4


@pytest.mark.parametrize(
    ("reference", "kind", "message"),
    [
        ("m", lake.NotFoundError, "no dataset 'm'.*nearest: 'n'|no dataset 'm'"),
        ("n@#5", lake.NotFoundError, r"the log of 'n' goes from #1 to #4"),
        ("n@#0", lake.NotFoundError, "goes from #1"),
        ("n@#one", ValueError, "the number of a log entry, such as n@#4"),
        ("n@", ValueError, "names no version after the @"),
        ("n@1999-01-01", lake.NotFoundError, "had no version yet at 1999-01-01"),
        ("n@2026-13-01", ValueError, "not an ISO date"),
        ("n@v7", lake.NotFoundError, "no tag 'v7'"),
        ("n@00000000", lake.NotFoundError, "no version of 'n' begins with 00000000"),
        ("a b@head", ValueError, "dataset name 'a b'"),
        (5, TypeError, "a text, a Version or a Dataset, not by int"),
    ],
)
def test_a_reference_to_nothing_says_what_there_is(
    tmp_path: Path, reference: Any, kind: type[Exception], message: str
):
    """The numbers, the nearest name, or the rule."""
    with pytest.raises(kind, match=message):
        numbered(tmp_path).dataset(reference)


def test_digits_that_fit_two_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both are named; versions that no entry of the log names do not count."""
    lk = numbered(tmp_path, 2)
    ids = [version.id for version in lk.versions("n")]
    monkeypatch.setattr(resolve, "_HEX", resolve.re.compile("[0-9a-f]{0,64}"))
    common = "" if ids[0][0] != ids[1][0] else ids[0][0]
    head = lk.refs.head("n")
    assert head is not None

    with pytest.raises(ValueError, match=f"fits several versions: .*{min(ids)[:16]}"):
        resolve._by_id(lk.refs, "n", head, common)
    orphan = names.version_key("n", ids[0][:8] + "0" * 56)
    lk.store.put(orphan, b"{}")
    assert rows(lk, f"n@{ids[0][:8]}") == 2


def test_an_expired_version_is_refused_unless_something_keeps_it(tmp_path: Path):
    """By number, by id and by time; `versions` leaves it out; with a tag it reads as before."""
    lk = numbered(tmp_path)
    second = lk.versions("n")[2]
    expire(lk, "n", 2)

    for reference in ("n@#2", second, f"n@{second.id[:10]}", f"n@{time_of(lk, 2)}"):
        with pytest.raises(lake.VersionExpired, match="n@#2 was expired; tag or pin"):
            lk.dataset(reference)
    assert [v.seq for v in lk.versions("n")] == [4, 3, 1]
    other = numbered(tmp_path / "other")
    other.tag("n@#2", "keep")
    expire(other, "n", 2)
    assert rows(other, "n@#2") == rows(other, second) == rows(other, "n@keep") == 2


def test_a_version_that_came_again_is_found_where_it_is_not_expired(tmp_path: Path):
    """The same content twice has one id: the living entry counts."""
    lk = numbered(tmp_path, 2)
    lk.rollback("n", "#1")
    first = lk.versions("n")[0]
    lk.commit("n", pa.table({"x": range(9)}), key=None)
    expire(lk, "n", 1)

    assert first.seq == 3
    assert lk.dataset(f"n@{first.id}").snapshot.entry.seq == 3


def test_what_was_before_a_removal_is_gone(tmp_path: Path):
    """Numbers, ids, times and tags of the earlier life name nothing; the new life has its own."""
    lk = numbered(tmp_path, 2)
    first = lk.versions("n")[1]
    lk.tag(first, "v1")
    lk.remove("n")
    with pytest.raises(lake.NotFoundError, match="no dataset 'n'"):
        lk.dataset("n@#1")
    with pytest.raises(lake.NotFoundError, match="no dataset 'n'"):
        lk.tags("n")
    lk.commit("n", pa.table({"x": range(7)}), key=None)

    for reference in ("n@#1", f"n@{time_of(lk, 1)}"):
        with pytest.raises(lake.NotFoundError, match="came into being again with #4"):
            lk.dataset(reference)
    for reference in (first, f"n@{first.id[:9]}", "n@v1"):
        with pytest.raises(lake.NotFoundError):
            lk.dataset(reference)
    with pytest.raises(lake.NotFoundError, match="where the dataset was removed"):
        lk.dataset("n@#3")
    assert lk.tags("n") == {}
    assert [v.seq for v in lk.versions("n")] == [4]
    lk.tag("n", "v1")
    assert rows(lk, "n@v1") == 7


def long_log(lk: Lake, name: str, length: int) -> None:
    """A dataset of three versions, the last of which was made again and again until its log is that long."""
    for rows in (1, 2, 3):
        lk.commit(name, pa.table({"x": range(length, length + rows)}), key=None)
    last = lk.log(name)[0]
    for seq in range(4, length + 1):
        entry = replace(last, seq=seq, parent=last.version, txn=f"{seq}")
        lk.store.put_new(names.log_key(name, seq), encode_entry(entry))
    lk.store.put(names.head_key(name), str(length).encode())


def requests(lk: Lake, length: int) -> list[list[str]]:
    """What opening, committing to, going back in and reading a dataset with so long a log asks of the store."""
    name = f"n{length}"
    long_log(lk, name, length)
    counting = CountingStore(lk.store)
    lk = over(lk, counting)
    steps: list[Callable[[], object]] = [
        lambda: lk.dataset(name),
        lambda: lk.commit(name, pa.table({"x": [length]}), mode="append"),
        lambda: lk.dataset(f"{name}@#2"),
        lambda: lk.dataset(f"{name}@head")[0],
    ]
    asked = []
    for step in steps:
        counting.reset()
        step()
        asked.append([verb for verb, _ in counting.calls])
    return asked


def test_a_long_log_costs_no_more_to_open_or_to_commit_to(store: Any):
    """The same requests with three versions and with hundreds, on a folder and on S3."""
    lk = Lake(store, lake.open(store.url).settings, progress=False)

    few, many = requests(lk, 3), requests(lk, 10_000 if FULL else 200)

    assert few == many
    assert len(few[0]) <= 4
