"""Names and keys: what may be a name, and that every key is read back as what it was made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.format import names
from lake.format.names import ParsedKey, check_name, check_tag, parse_key

good_parts = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
digests = st.integers(0, 2**256 - 1).map(lambda n: f"{n:064x}")


def is_name(text: str) -> bool:
    try:
        return bool(check_name(text))
    except ValueError:
        return False


dataset_names = st.lists(good_parts, min_size=1, max_size=3).map("/".join).filter(is_name)


@pytest.mark.parametrize(
    "name",
    ["birds", "a", "A.b_c-d", "2026", "a/b/c", "x" * 80, "/".join(["y" * 66] * 3), "com10", "logs", "con-1"],
)
def test_ordinary_names_are_names(name):
    """Letters, digits, dots, underscores and hyphens, in parts, up to the limits."""
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "beginning with"),
        ("/a", "beginning with"),
        ("a/", "beginning with"),
        ("a//b", "beginning with"),
        (".", "beginning with"),
        ("..", "beginning with"),
        ("a/../b", "beginning with"),
        (".hidden", "beginning with"),
        ("-a", "beginning with"),
        ("a b", "beginning with"),
        ("é", "beginning with"),
        ("a%2Fb", "beginning with"),
        ("a\n", "beginning with"),
        ("a\x00", "beginning with"),
        ("a.", "end in"),
        ("a.lock", "end in"),
        ("a.LOCK/b", "end in"),
        ("con", "Windows"),
        ("NUL.txt", "Windows"),
        ("a/lpt1", "Windows"),
        ("log", "itself uses"),
        ("a/Versions", "itself uses"),
        ("head", "itself uses"),
        ("tmp", "itself uses"),
        ("gc/x", "itself uses"),
        ("x" * 81, "longer than 80"),
        ("/".join(["y" * 67] * 3), "longer than 200"),
    ],
)
def test_other_names_are_refused_with_the_rule_they_break(name, rule):
    """The message says which rule."""
    with pytest.raises(ValueError, match=rule):
        check_name(name)


@pytest.mark.parametrize("word", sorted(names.RESERVED))
def test_words_of_the_layout_are_no_parts_of_names(word):
    """So a key belongs to one dataset and one kind, however datasets are nested."""
    for name in (word, word.upper(), f"a/{word}", f"{word}/a"):
        assert not is_name(name)


def test_a_name_that_is_no_text_is_a_type_error():
    """None is not the dataset called None."""
    with pytest.raises(TypeError, match="NoneType"):
        check_name(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int"):
        check_tag(1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tag", ["v1", "v1.0", "1", "1234567", "release-2026", "beef", "2026", "20261", "2026-1"]
)
def test_ordinary_tags_are_tags(tag):
    """Short numbers and words, even hexadecimal ones, cannot be taken for anything else."""
    assert check_tag(tag) == tag


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "a/b",
        "head",
        "#3",
        "deadbeef",
        "DEADBEEF",
        "0" * 64,
        "2026-11-01",
        "2026-11",
        "2026-W45",
        "2026-11-01T12",
        "v1.lock",
    ],
)
def test_tags_that_look_like_other_references_are_refused(tag):
    """`name@...` must mean one thing."""
    with pytest.raises(ValueError, match="tag"):
        check_tag(tag)


@given(dataset_names, dataset_names)
def test_names_share_a_claim_exactly_if_they_differ_only_by_case(one, other):
    """The claim is where the second of two such names is refused, on any file system."""
    assert names.name_key(one) == names.name_key(one.swapcase())
    assert (names.name_key(one) == names.name_key(other)) == (one.lower() == other.lower())


@given(st.data(), dataset_names, digests, st.integers(0, 12))
def test_every_key_is_read_back_as_what_it_names(data, name, digest, generation):
    """parse_key is the inverse of the builders, for all kinds."""
    seq = data.draw(st.integers(1, 10**20 - 1))
    tag = data.draw(good_parts.filter(lambda text: is_name(text) and text.isalpha() and len(text) < 8))
    keys = {
        names.LAKE: ParsedKey("lake"),
        names.name_key(name): ParsedKey("name", name.lower()),
        names.log_key(name, seq): ParsedKey("log", name, seq=seq),
        names.head_key(name): ParsedKey("head", name),
        names.version_key(name, digest, generation): ParsedKey("version", name, digest, generation),
        names.tag_key(name, tag): ParsedKey("tag", name, tag=tag),
        names.pin_key(name, digest): ParsedKey("pin", name, digest),
        names.derived_key(name, digest): ParsedKey("derived", name, digest),
        names.segment_key(digest, generation): ParsedKey("segment", None, digest, generation),
        names.part_key(digest, generation): ParsedKey("part", None, digest, generation),
        names.condemned_key("run-1"): ParsedKey("condemned", run="run-1"),
        names.claimed_key("run-1"): ParsedKey("claimed", run="run-1"),
        names.swept_key("run-1"): ParsedKey("swept", run="run-1"),
    }
    for key, parsed in keys.items():
        assert parse_key(key) == parsed
    assert parse_key(names.txn_key(name, "any text: é/..")).kind == "txn"
    assert parse_key(names.damaged_key(names.part_key(digest))).kind == "damaged"
    for key in (names.log_key(name, seq), names.head_key(name), names.tag_key(name, tag)):
        assert key.startswith(names.dataset_prefix(name))


@given(dataset_names, digests)
def test_changing_any_character_of_a_key_never_gives_another_object_of_the_same_name(name, digest):
    """What is not spelled exactly as lake spells it is foreign, and gc leaves it alone."""
    for key in (names.part_key(digest, 1), names.version_key(name, digest), names.log_key(name, 3)):
        for mangled in (
            key + " ",
            key + "/",
            "/" + key,
            key + "\n",
            key.replace("/", "//"),
            key + ".bak",
            "x/" + key,
        ):
            assert parse_key(mangled) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "shards/ab/" + "cd" * 32 + ".arrow",  # another fan-out
        "shards/cd/" + "CD" * 32 + ".arrow",
        "shards/cd/" + "cd" * 32 + ".g0.arrow",
        "shards/cd/" + "cd" * 32 + ".g01.arrow",
        "shards/cd/" + "cd" * 32 + ".arrow.tmp",
        "datasets/log/log/" + "0" * 19 + "1.json",  # no dataset may have this name
        "datasets/a/log/1.json",
        "datasets/a/log/" + "0" * 20 + ".json",
        "datasets/a/tags/deadbeef.json",
        "datasets/a/../b/head",
        "datasets/a/notes.txt",
        "names/Birds.json",
        "names/a/b.json",
        "lake.json.bak",
        "manifests/x.parquet",
    ],
)
def test_foreign_keys_are_not_parsed(key):
    """A key that lake would never write names nothing."""
    assert parse_key(key) is None


@given(digests, st.integers(0, 99))
def test_all_generations_of_an_object_share_a_stem(digest, generation):
    """One listing below the stem finds them, and each knows its number."""
    key = names.part_key(digest, generation)
    assert key.startswith(names.stem(names.part_key(digest)))
    assert names.generation_of(key) == generation


def test_what_is_no_digest_is_never_made_a_key():
    """Digests come from documents that others may have written."""
    for text in ("", "ab", "../../etc/passwd", "AB" * 32, "ab" * 32 + "\n", None):
        with pytest.raises(ValueError, match="64"):
            names.part_key(text)  # type: ignore[arg-type]


def test_sequence_numbers_sort_as_text():
    """Listing a log gives it in order."""
    keys = [names.log_key("a", seq) for seq in (1, 2, 9, 10, 99, 10**19)]
    assert keys == sorted(keys)
    with pytest.raises(ValueError, match="sequence"):
        names.log_key("a", 0)
