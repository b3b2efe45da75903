"""Documents that are not what their names say, and lakes that are not there, are told apart in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lake
from lake.format import names

GARBAGE = {
    "empty": b"",
    "zeros": bytes(300),
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "cut": b'{"format": 1, "id": "0',
    "list": b"[]",
    "no members": b"{}",
    "not utf-8": b"\xff\xfe{}",
    "odd format": b'{"format": "x"}',
}
DOCUMENTS = (
    "lake.json",
    "names/birds.json",
    "datasets/birds/log/00000000000000000001.json",
    "datasets/birds/tags/v1.json",
)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    lk = lake.open(tmp_path / "l")
    lk.commit("birds", pa.table({"key": ["a"], "x": [1]}))
    lk.tag("birds", "v1")
    return tmp_path / "l"


def _read(folder: Path) -> None:
    """Everything that reads one of the documents."""
    lk = lake.open(folder)
    lk.datasets()
    lk.log("birds")
    lk.dataset("birds@v1")


@pytest.mark.parametrize("key", DOCUMENTS)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_a_document_that_is_none_is_damage(birds: Path, key: str, garbage: bytes):
    """It is named with its lake and the way out; nobody is told to upgrade."""
    _read(birds)
    (birds / key).write_bytes(garbage)

    with pytest.raises(lake.IntegrityError) as caught:
        _read(birds)
    message = str(caught.value)
    assert message.startswith(f"{key} in {birds} is damaged (")
    assert message.count(key) == 1
    assert "`lake verify`" in message
    assert "upgrade" not in message
    assert not lake.open(birds).verify("refs").ok


def _commit(folder: Path, name: str) -> None:
    lake.open(folder).commit(name, pa.table({"key": ["a"], "x": [1]}), mode="append", txn="t")


WRITERS: dict[str, Callable[[Path], object]] = {
    DOCUMENTS[2]: lambda folder: lake.open(folder).gc(),
    DOCUMENTS[3]: lambda folder: lake.open(folder).gc(),
    "names/owls.json": lambda folder: _commit(folder, "owls"),
    names.txn_key("birds", "t"): lambda folder: _commit(folder, "birds"),
}


@pytest.mark.parametrize("key", WRITERS)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_for_those_who_write_or_collect_it_is_damage_too(birds: Path, key: str, garbage: bytes):
    """One kind of error, whoever meets it: repairing is the way out, not upgrading."""
    (birds / key).parent.mkdir(exist_ok=True)
    (birds / key).write_bytes(garbage)

    with pytest.raises(lake.IntegrityError) as caught:
        WRITERS[key](birds)
    assert str(caught.value).startswith(f"{key} in {birds} is damaged (")


@pytest.mark.parametrize("key", DOCUMENTS[2:])
def test_what_only_writers_must_know_is_newer_to_them(birds: Path, key: str):
    """An unknown field: readers go on, gc says that it takes a later release."""
    document = json.loads((birds / key).read_text())
    (birds / key).write_text(json.dumps(document | {"overlays": []}))

    _read(birds)
    with pytest.raises(lake.FormatError, match="unknown overlays: upgrade lake"):
        lake.open(birds).gc()


@pytest.mark.parametrize("key", ["lake.json", DOCUMENTS[2]])
def test_what_needs_more_is_newer_not_damaged(birds: Path, key: str):
    """Then upgrading is the way out."""
    document = json.loads((birds / key).read_text())
    (birds / key).write_text(json.dumps(document | {"needs": {"read": ["telepathy"], "write": []}}))

    with pytest.raises(lake.FormatError, match=r"needs telepathy: upgrade lake"):
        _read(birds)


def test_a_later_format_is_newer_not_damaged(birds: Path):
    """Whatever else the description then says."""
    (birds / "lake.json").write_text('{"format": 2, "name": "unheard of"}')

    with pytest.raises(lake.FormatError, match="upgrade lake"):
        _read(birds)


def test_a_bucket_that_is_not_there_is_not_a_lake_to_make(s3_url: str):
    """Neither reading nor making a lake advises to make one; no key that lake made up is named."""
    lk = lake.open("s3://lake-bukcet/l")

    for ask in (
        lk.datasets,
        lk.init,
        lambda: lk.log("birds"),
        lambda: lk.commit("birds", pa.table({"x": [1]})),
    ):
        with pytest.raises(lake.NotFoundError, match="bucket 'lake-bukcet' does not exist") as caught:
            ask()
        assert "create it or correct the name" in str(caught.value)
        assert "lake init" not in str(caught.value)
        assert "tmp/" not in str(caught.value)


def test_where_a_lake_can_be_made_the_advice_stands(s3_url: str, tmp_path: Path):
    """In a bucket that is there, and in a folder that is not."""
    for url in (s3_url, str(tmp_path / "l")):
        with pytest.raises(lake.NotFoundError, match=f"`lake init {url}` or the first commit makes one"):
            lake.open(url).datasets()


@pytest.mark.parametrize("source", ["s3://lake-bukcet/x.csv", "s3://lake-bukcet/*.csv"])
def test_a_bucket_of_inputs_that_is_not_there_is_named(s3_url: str, tmp_path: Path, source: str):
    """Not the file in it."""
    with pytest.raises(lake.NotFoundError, match=r"bucket 'lake-bukcet' does not exist: .*correct the name"):
        lake.open(tmp_path / "l").commit("birds", source)
