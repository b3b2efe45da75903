"""Log entries: their bytes, what is refused, and tombstones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import FormatError
from lake.format.log import EXPIRED, decode_entry, encode_entry, tombstone
from lake.format.values import LogEntry

ENTRY = LogEntry(
    seq=7,
    version="ab" * 32,
    parent="cd" * 32,
    operation="append",
    time="2026-11-01T12:00:00.000001Z",
    author="ana",
    message="more birds",
    txn="nightly-1",
    born=3,
    rows_added=10,
    rows_removed=0,
    bytes_new=1000,
    bytes_reused=0,
)

digests = st.integers(0, 2**256 - 1).map(lambda n: f"{n:064x}")
counts = st.integers(0, 2**63 - 1)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def entries(draw):
    version = draw(st.none() | digests)
    born = draw(st.integers(1, 2**62))
    return LogEntry(
        seq=born + draw(st.integers(0, 100)),
        version=version,
        parent=draw(st.none() | digests),
        operation="remove" if version is None else draw(words.filter(lambda word: word != "remove")),
        time=draw(st.datetimes()).isoformat(timespec="microseconds") + "Z",
        author=draw(words),
        message=draw(st.none() | words),
        txn=draw(words),
        born=born,
        rows_added=draw(counts),
        rows_removed=draw(counts),
        bytes_new=draw(counts),
        bytes_reused=draw(counts),
    )


@given(entries())
def test_an_entry_is_read_back(entry):
    """Whatever its members are."""
    assert decode_entry(encode_entry(entry), "x", writing=True) == entry


def test_the_bytes_of_an_entry_are_frozen():
    """A repeated create is told from a rival's by its bytes."""
    assert encode_entry(ENTRY) == (
        b'{"author":"ana","born":3,"bytes_new":1000,"bytes_reused":0,"message":"more birds",'
        b'"needs":{"read":[],"write":[]},"operation":"append","parent":"' + b"cd" * 32 + b'",'
        b'"rows_added":10,"rows_removed":0,"seq":7,"time":"2026-11-01T12:00:00.000001Z",'
        b'"txn":"nightly-1","version":"' + b"ab" * 32 + b'"}'
    )


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("seq", 0),
        ("seq", "7"),
        ("seq", True),
        ("seq", 2**63),
        ("born", 8),
        ("born", 0),
        ("version", "ab"),
        ("version", "AB" * 32),
        ("version", None),
        ("parent", "../x"),
        ("parent", 5),
        ("operation", "remove"),
        ("operation", ""),
        ("operation", None),
        ("time", "2026-11-01"),
        ("time", "2026-11-01T12:00:00Z"),
        ("author", None),
        ("message", 5),
        ("txn", ""),
        ("txn", None),
        ("rows_added", -1),
        ("bytes_new", 1.5),
        ("needs", None),
    ],
)
def test_a_member_that_cannot_be_is_a_format_error_that_names_the_key(member, value):
    """Nothing of another type or beyond its limits gets in."""
    document = json.loads(encode_entry(ENTRY)) | {member: value}
    with pytest.raises(FormatError, match="log/7"):
        decode_entry(json.dumps(document).encode(), "log/7")


@pytest.mark.parametrize("member", sorted(json.loads(encode_entry(ENTRY))))
def test_a_missing_member_is_a_format_error(member):
    """Every member is there, always."""
    document = json.loads(encode_entry(ENTRY))
    del document[member]
    with pytest.raises(FormatError, match=f"lacks {member}"):
        decode_entry(json.dumps(document).encode(), "x")


def test_readers_skip_what_they_do_not_know_and_writers_refuse_it():
    """A later release may say more of an entry."""
    data = json.dumps(json.loads(encode_entry(ENTRY)) | {"mood": "good"}).encode()
    assert decode_entry(data, "x") == ENTRY
    with pytest.raises(FormatError, match="unknown mood"):
        decode_entry(data, "x", writing=True)


def test_an_entry_that_needs_a_newer_reader_is_refused():
    """It says so itself."""
    data = encode_entry(replace(ENTRY, needs={"read": [], "write": []})).replace(
        b'"read":[]', b'"read":["x"]'
    )
    with pytest.raises(FormatError, match="needs x"):
        decode_entry(data, "x")


@given(entries().filter(lambda entry: entry.version is not None))
def test_a_tombstone_keeps_seq_time_and_txn_and_is_no_removal(entry):
    """So its place, its order and whose it was stay known."""
    dead = tombstone(entry)
    assert decode_entry(encode_entry(dead), "x") == dead
    assert (dead.seq, dead.time, dead.txn, dead.born) == (entry.seq, entry.time, entry.txn, entry.born)
    assert dead.operation == EXPIRED
    assert dead.version == entry.version  # asked for by id, it is known to have expired
    assert tombstone(dead) == dead


def test_a_removal_has_no_tombstone():
    """There is no version to expire."""
    with pytest.raises(ValueError, match="removal"):
        tombstone(replace(ENTRY, version=None, operation="remove"))


def test_an_entry_that_cannot_be_read_is_not_written():
    """encode refuses what decode would."""
    with pytest.raises(FormatError, match="time"):
        encode_entry(replace(ENTRY, time="now"))
