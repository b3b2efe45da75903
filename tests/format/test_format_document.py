"""docs/format.md says what the code does: its example is recomputed, its tables are complete."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa
import pytest

from lake.format import names
from lake.format.shards import BATCH, PART
from lake.format.values import Batch, LogEntry, Part, SegmentRef, VersionDocument
from tests.format import example

PAGE = example.PAGE.read_text()


@pytest.mark.parametrize("name", sorted(example.blocks()))
def test_the_example_is_what_the_code_makes(name):
    """Byte for byte; `python -m tests.format.example` writes it anew."""
    if name in example.DEPENDENT and pa.__version__ != example.PYARROW:
        pytest.skip(f"the page shows what pyarrow {example.PYARROW} writes")
    assert example.shown(PAGE)[name] == example.blocks()[name]


def test_the_page_says_which_pyarrow_made_the_example():
    """Ids of versions hang on its Parquet writer."""
    assert f"with pyarrow {example.PYARROW} " in PAGE


@pytest.mark.parametrize("value", [LogEntry, VersionDocument, SegmentRef, Part, Batch])
def test_every_field_of_a_document_is_on_the_page(value):
    """A reader needs no other source."""
    for field in fields(value):
        assert f"`{field.name}`" in PAGE or f".{field.name}`" in PAGE or f"{field.name}, " in PAGE, field.name
    assert [field.name for field in fields(Part)] == [field.name for field in PART]
    assert [field.name for field in fields(Batch)] == [field.name for field in BATCH]


@pytest.mark.parametrize("word", sorted(names.RESERVED))
def test_every_reserved_word_is_on_the_page(word):
    """Names of datasets are part of the format."""
    (listed,) = (line for line in PAGE.splitlines() if line.startswith("`log versions"))
    assert word in listed.split("`")[1].split()


def test_the_constants_of_the_rules_are_on_the_page():
    """They are frozen with the format."""
    for constant in (
        "262144",
        "4194304",
        "16777216",
        "8,192",
        "11 low zero bits",
        "64 MiB and 64 levels",
        "65,536",
        "1818323813",
    ):
        assert constant in PAGE
