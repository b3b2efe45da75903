"""Canonical JSON: one text for one value, and limits for what others wrote."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import FormatError
from lake.format import documents
from lake.format.documents import canonical, check_fields, check_needs, parse

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
).filter(lambda value: not isinstance(value, str) or value.isprintable() or value.isascii())
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé\u2028\x00"), inner, max_size=3),
)


@given(st.dictionaries(st.text("ab\x7f"), values, max_size=4))
def test_a_value_is_read_back_and_written_as_the_same_bytes(value):
    """encode and parse are inverse on values, and parse and encode on bytes."""
    data = canonical(value)
    assert parse(data, "x") == value
    assert canonical(parse(data, "x")) == data
    assert json.loads(data) == value


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(), min_size=2, max_size=5))
def test_the_order_of_insertion_does_not_show(value):
    """Keys are sorted."""
    assert canonical(dict(reversed(value.items()))) == canonical(value)


def test_canonical_bytes_are_frozen():
    """Version ids hang on them."""
    value = {"b": [1, -0.0, 1e22, 0.1, True, None], "a": {"é": '"\\\n\x01/ '}, "z": []}
    assert (
        canonical(value)
        == '{"a":{"é":"\\"\\\\\\n\\u0001/ "},"b":[1,-0.0,1e+22,0.1,true,null],"z":[]}'.encode()
    )


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"a": {1: 2}}, TypeError, r"\.a: key 1 is a int"),
        ({"a": [b"x"]}, TypeError, r"\.a\[\]: bytes"),
        ({"a": {1, 2}}, TypeError, "set"),
        ({"a": float("nan")}, ValueError, "JSON compliant"),
        ({"a": float("inf")}, ValueError, "JSON compliant"),
        ({"a": "\ud800"}, ValueError, "surrogates"),
    ],
)
def test_what_json_cannot_hold_is_refused_and_located(value, error, message):
    """A key 1 must not silently become "1"."""
    with pytest.raises(error, match=message):
        canonical(value)


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_sixty_four_levels_are_the_limit_on_both_sides():
    """A document nested deeper is neither written nor read, however deep."""
    assert parse(canonical(nested(64)), "x") == nested(64)
    with pytest.raises(ValueError, match="64 levels"):
        canonical(nested(65))
    for depth in (65, 500, 100_000):
        with pytest.raises(FormatError, match="doc: nested over 64 levels"):
            parse(b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}", "doc")


def test_sixty_four_mebibytes_are_the_limit_on_both_sides(monkeypatch):
    """Size is looked at before anything is parsed."""
    monkeypatch.setattr(documents, "DOCUMENT_BYTES", 100)
    with pytest.raises(FormatError, match="doc: 102 bytes, over the limit of 100"):
        parse(b" " * 100 + b"{}", "doc")
    with pytest.raises(ValueError, match="limit"):
        canonical({"a": "x" * 100})
    assert documents.DOCUMENT_LEVELS == 64


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b"null",
        b"\xff",
        b'{"a":NaN}',
        b'{"a":1,"a":1}',
        b'{"a":Infinity}',
        b'{"a":1}x',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_other_bytes_are_a_format_error_that_names_the_document(data):
    """Nothing else comes out, whatever the bytes."""
    with pytest.raises(FormatError, match=r"^doc: "):
        parse(data, "doc")


@given(st.binary(max_size=40) | st.text().map(str.encode))
def test_no_bytes_make_parse_fail_otherwise(data):
    """Either an object or a FormatError."""
    with suppress(FormatError):
        assert isinstance(parse(data, "doc"), dict)


def test_unknown_needs_stop_readers_or_only_writers():
    """A reader minds `read`; a writer minds every name and every kind of need."""
    assert check_needs({"read": [], "write": []}, "doc", writing=True) == documents.NO_NEEDS
    with pytest.raises(FormatError, match=r"doc needs deltas: upgrade lake to read it"):
        check_needs({"read": ["deltas"], "write": []}, "doc")
    check_needs({"read": [], "write": ["deltas"]}, "doc")
    check_needs({"read": [], "write": [], "gc": ["x"]}, "doc")
    for needs in ({"read": [], "write": ["deltas"]}, {"read": [], "write": [], "gc": []}):
        with pytest.raises(FormatError, match="upgrade lake to write it"):
            check_needs(needs, "doc", writing=True)
    for needs in (None, [], {"read": "x"}, {"read": [1]}):
        with pytest.raises(FormatError, match="doc"):
            check_needs(needs, "doc")
    with pytest.raises(FormatError, match="needs x"):
        documents.check_writable(b'{"needs":{"read":[],"write":["x"]}}', "doc")


def test_unknown_fields_stop_only_writers_and_missing_ones_everybody():
    """Later releases may add fields that readers can ignore; a writer would lose them."""
    check_fields({"a": 1, "new": 2}, ["a"], "doc", writing=False)
    with pytest.raises(FormatError, match="doc has unknown new"):
        check_fields({"a": 1, "new": 2}, ["a"], "doc", writing=True)
    with pytest.raises(FormatError, match="doc lacks a"):
        check_fields({}, ["a"], "doc", writing=False)
