"""The key and field that a path stands for."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake import filenames

PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("path", "key", "field"),
    [
        ("a/x.wav", "a/x", "wav"),
        ("a/x.JSON", "a/x", "json"),
        ("README", "README", "file"),
        ("a.b/README", "a.b/README", "file"),
        ("x.tar.gz", "x", "tar.gz"),
        ("x.json.zst", "x", "json.zst"),
        ("scan.v2.NII.GZ", "scan.v2", "nii.gz"),
        ("x.gz", "x", "gz"),
        ("tar.gz", "tar", "gz"),
        ("x.y.z.txt", "x.y.z", "txt"),
        ("ends with a dot.", "ends with a dot.", "file"),
        ("two words.b c", "two words", "b c"),
    ],
)
def test_a_path_is_a_key_and_a_field(path, key, field):
    """The field is the lower-cased extension, with the one before it where that one only compresses."""
    assert filenames.split(path) == (key, field)


def test_composed_and_decomposed_names_are_the_same_key():
    """macOS stores names decomposed; a key is NFC wherever the folder lay."""
    assert filenames.split(unicodedata.normalize("NFD", "é/ü.tXt")) == ("é/ü", "txt")


@given(st.lists(PARTS, min_size=1, max_size=3).map("/".join))
def test_key_and_field_hold_all_of_the_path(path):
    """Nothing of a path is lost but the case of its extension."""
    key, field = filenames.split(path)

    composed = unicodedata.normalize("NFC", path)
    whole = key if key == composed else f"{key}.{field}"

    assert key
    assert whole.casefold() == composed.casefold()


@pytest.mark.parametrize(
    ("path", "expected"), [(".a", True), ("b/.git/c", True), ("b/c.d", False), ("b./c", False)]
)
def test_hidden_is_what_begins_with_a_dot(path, expected):
    """In any component of the path."""
    assert filenames.hidden(path) is expected
