"""Tags, rollback, copies, removal: what they make, what they refuse, and that no data moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lake
from lake.format import documents, names
from lake.repo import Lake
from lake.stores.wrappers import CountingStore
from tests.changing import Meanwhile, birds, lake_of, over, read, shards, table, written

MOVES = ("publish", "copy")


@pytest.fixture
def lk(tmp_path: Path) -> Lake:
    """A lake whose `birds` has two versions: 60 rows, then 90."""
    return lake_of(tmp_path, birds(60), birds(30, 60))


def test_a_tag_names_a_version_for_good(lk: Lake):
    """The same again is no error, another version is a conflict that says who and when; untag frees the name."""
    lk.tag("birds@#1", "v1", message="first release")
    lk.tag("birds@#1", "v1")

    assert lk.tags("birds") == {"v1": lk.versions("birds")[1].id}
    assert read(lk, "birds@v1") == birds(60)
    with pytest.raises(
        lake.ConflictError, match=r"has the tag 'v1' on .* since .* \(by .*\); untag it first"
    ):
        lk.tag("birds", "v1")
    lk.untag("birds", "v1")
    with pytest.raises(lake.NotFoundError, match="no tag 'v1'"):
        lk.untag("birds", "v1")
    with pytest.raises(lake.NotFoundError, match="no dataset 'fish'"):
        lk.untag("fish", "v1")
    lk.tag("birds", "v1")
    assert read(lk, "birds@v1") == birds(90)
    stored = documents.parse(lk.store.get(names.tag_key("birds", "v1")), "tag")
    assert {"seq": 2, "born": 1, "message": None}.items() <= stored.items()


@pytest.mark.parametrize(
    "tag", ["head", "#3", "deadbeef", "2026-11-01", "2026-W01", "a b", "", "x.lock", "a/b"]
)
def test_tags_may_not_look_like_other_references(lk: Lake, tag: str):
    """Otherwise a name would mean two things."""
    with pytest.raises(ValueError, match="tag"):
        lk.tag("birds", tag)
    assert lk.tags("birds") == {}


def test_a_rollback_makes_an_earlier_version_the_head(lk: Lake):
    """The log goes on, nothing is lost, no data moves; a second rollback undoes the first."""
    counting = CountingStore(lk.store)

    made = over(lk, counting).rollback("birds", to="#1", message="oops")

    assert (made.seq, made.rows, made.id) == (3, 60, lk.versions("birds")[-1].id)
    assert [verb for verb, _ in counting.calls if verb in MOVES] == []
    assert read(lk) == birds(60)
    entry = lk.log("birds")[0]
    assert (entry.operation, entry.message, entry.rows_added, entry.rows_removed) == (
        "rollback",
        "oops",
        60,
        90,
    )
    assert lk.rollback("birds", to="#2").rows == 90
    assert read(lk) == birds(90)
    assert lk.rollback("birds", to="head").seq == 4


def test_a_copy_moves_no_data_and_goes_its_own_way(lk: Lake):
    """Same id, one entry; changes to one do not show in the other; an existing name is refused."""
    counting = CountingStore(lk.store)

    made = over(lk, counting).copy("birds@#1", "exp/one", message="try")

    assert (made.name, made.seq, made.rows, made.bytes_new) == ("exp/one", 1, 60, 0)
    assert made.id == lk.versions("birds")[1].id
    assert [verb for verb, _ in counting.calls if verb in MOVES] == []
    assert written(counting) == []
    lk.delete_rows("exp/one", "x > 3")
    lk.remove("birds")
    assert read(lk, "exp/one@#1") == birds(60)
    with pytest.raises(lake.ConflictError, match=r"'exp/one' exists already.*before repeating\.$"):
        lk.copy("exp/one@#1", "exp/one")
    with pytest.raises(ValueError, match="by case only"):
        lk.copy("exp/one", "EXP/one")


def test_a_removal_ends_a_dataset_and_a_commit_begins_a_new_life(lk: Lake):
    """Its log goes on; tags of before count for nothing; an append starts from nothing."""
    lk.tag("birds", "v1")

    lk.remove("birds", message="done")

    assert lk.datasets() == []
    assert [entry.operation for entry in lk.log("birds")] == ["remove", "append", "overwrite"]
    assert lk.versions("birds") == []
    with pytest.raises(lake.NotFoundError, match="no dataset 'birds'"):
        lk.remove("birds")
    made = lk.commit("birds", table(birds(5)), mode="append")
    assert (made.seq, made.rows) == (4, 5)
    assert lk.log("birds")[0].born == 4
    lk.tag("birds", "v1")
    assert read(lk, "birds@v1") == birds(5)


CHANGES: dict[str, Callable[[Lake], Any]] = {
    "rollback": lambda lk: lk.rollback("birds", to="#1"),
    "remove": lambda lk: lk.remove("birds"),
    "copy": lambda lk: lk.copy("birds", "fish"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_head_that_moved_meanwhile_is_a_conflict(lk: Lake, change: str):
    """What another did meanwhile is neither undone nor removed."""

    def act() -> None:
        lk.commit("fish" if change == "copy" else "birds", table(birds(7)), message="rival")

    with pytest.raises(lake.ConflictError, match="'rival'"):
        CHANGES[change](over(lk, Meanwhile(lk.store, act)))
    assert lk.dataset("fish" if change == "copy" else "birds").count() == 7


def test_nothing_is_made_of_a_version_that_lost_a_part(lk: Lake):
    """A tag, pin, copy or rollback must never promise what is not there."""
    first = [part.digest for part in shards(lk, "birds@#1")[0].parts]
    lk.delete_rows("birds", "x >= 0 or x is null")
    lk.store.delete([names.part_key(digest) for digest in first])

    for make in (
        lambda: lk.tag("birds@#1", "v1"),
        lambda: lk.copy("birds@#1", "fish"),
        lambda: lk.rollback("birds", to="#1"),
        lambda: lk.pin("birds@#1"),
    ):
        with pytest.raises(lake.VersionExpired, match="was collected"):
            make()
    assert lk.tags("birds") == {}
    assert lk.datasets() == ["birds"]
