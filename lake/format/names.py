"""Names of datasets and tags, and the keys of every object in a lake.

A key is a "/"-separated string below the lake's prefix. `parse_key` is the inverse of the functions
that build keys: what it does not know, no part of lake ever deletes. This module never looks at a store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

FORMAT = 1
LAKE = "lake.json"
NAMES = "names/"
CONDEMNED = "gc/condemned/"
DAMAGED = "gc/damaged/"

Keys = Callable[[int], str]  # generation -> key of one object

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-(\d{2}|W\d{2})(-\d{1,2})?(T.*)?", re.IGNORECASE)
_HEX = re.compile(r"[0-9A-Fa-f]{8,64}")
_OF_DATASETS = ("log", "versions", "tags", "pins", "derived", "txns", "head")
RESERVED = frozenset({*_OF_DATASETS, "names", "datasets", "manifests", "shards", "tmp", "gc"})

PART_BYTES = 80
NAME_BYTES = 200


def check_name(name: str) -> str:
    """`name`, if it may name a dataset.

    >>> check_name("birds/2026-train")
    'birds/2026-train'

    Raises:
        ValueError: it may not; the message names the rule.
    """
    if not isinstance(name, str):
        raise TypeError(f"a dataset name is a str, not {type(name).__name__}")
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES:
        raise ValueError(f"dataset name {name[:40]!r}... is longer than {NAME_BYTES} bytes")
    for part in name.split("/"):
        if problem := _problem(part):
            raise ValueError(f"dataset name {name!r}: {problem}")
    return name


def check_tag(tag: str) -> str:
    """`tag`, if it may name a version: one part of a name that cannot be taken for another kind of reference.

    >>> check_tag("v1.0")
    'v1.0'

    Raises:
        ValueError: it may not; the message names the rule.
    """
    if not isinstance(tag, str):
        raise TypeError(f"a tag is a str, not {type(tag).__name__}")
    if problem := _problem(tag):
        raise ValueError(f"tag {tag!r}: {problem}")
    if _HEX.fullmatch(tag):
        raise ValueError(f"tag {tag!r}: 8 to 64 hex digits are read as a version id")
    if _DATE.fullmatch(tag):
        raise ValueError(f"tag {tag!r} is read as a date")
    return tag


def _problem(part: str) -> str | None:
    """Which rule for one part of a name `part` breaks."""
    if not _PART.fullmatch(part):
        return f"{part!r} must be letters, digits, '.', '_' and '-', beginning with a letter or digit"
    if len(part) > PART_BYTES:
        return f"{part[:20]!r}... is longer than {PART_BYTES} bytes"
    if part.endswith(".") or part.lower().endswith(".lock"):
        return f"{part!r} must not end in '.' or '.lock'"
    if _DEVICE.fullmatch(part):
        return f"{part!r} is the name of a Windows device"
    if part.lower() in RESERVED:
        return f"{part!r} is a word that lake itself uses in keys"
    return None


def check_digest(text: object) -> str:
    """`text`, if it is a sha256 in lower-case hex; else ValueError."""
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ValueError(f"not 64 lower-case hex digits: {str(text)[:80]!r}")
    return text


def name_key(name: str) -> str:
    """Where the one spelling of `name` is claimed: equal for names that differ only by case."""
    return f"{NAMES}{check_name(name).lower().replace('/', '%2F')}.json"


def dataset_prefix(name: str) -> str:
    """What every key of a dataset begins with."""
    return f"datasets/{check_name(name)}/"


def log_prefix(name: str) -> str:
    """What the keys of a log's entries begin with; listed, they are in order of their numbers."""
    return dataset_prefix(name) + "log/"


def log_key(name: str, seq: int) -> str:
    """Where the log entry `seq` is: 20 digits, so that keys sort as numbers do."""
    if not 1 <= seq < 10**20:
        raise ValueError(f"no such sequence number: {seq}")
    return f"{log_prefix(name)}{seq:020d}.json"


def log_seq(key: str) -> int:
    """The sequence number in a log entry's key; 0 for any other key.

    >>> log_seq(log_key("birds", 7))
    7
    """
    parsed = parse_key(key)
    return parsed.seq or 0 if parsed else 0


def head_key(name: str) -> str:
    """Where the hint of the newest entry is."""
    return dataset_prefix(name) + "head"


def version_key(name: str, version: str, generation: int = 0) -> str:
    """Where a version document, or a further copy of it, is."""
    return f"{dataset_prefix(name)}versions/{check_digest(version)}{_generation(generation)}.json"


def tag_key(name: str, tag: str) -> str:
    """Where a tag is."""
    return f"{dataset_prefix(name)}tags/{check_tag(tag)}.json"


def pin_key(name: str, version: str) -> str:
    """Where the protection of a pinned version is."""
    return f"{dataset_prefix(name)}pins/{check_digest(version)}.json"


def derived_key(name: str, fingerprint: str) -> str:
    """Where the pointer to what a pipeline of this fingerprint gave is."""
    return f"{dataset_prefix(name)}derived/{check_digest(fingerprint)}.json"


def txn_key(name: str, txn: str) -> str:
    """Where a caller's `txn` is recorded: under its hash, since it may be any text."""
    return f"{dataset_prefix(name)}txns/{hashlib.sha256(txn.encode()).hexdigest()}.json"


def segment_key(digest: str, generation: int = 0) -> str:
    """Where a segment, or a further copy of it, is."""
    return f"manifests/{check_digest(digest)[:2]}/{digest}{_generation(generation)}.parquet"


def part_key(digest: str, generation: int = 0) -> str:
    """Where a part, or a further copy of it, is.

    >>> part_key("ab" * 32, generation=1)[-8:]
    'g1.arrow'
    """
    return f"shards/{check_digest(digest)[:2]}/{digest}{_generation(generation)}.arrow"


def version_keys(name: str, version: str) -> Keys:
    """Where the copies of a version document are, by generation."""
    return lambda generation: version_key(name, version, generation)


def segment_keys(digest: str) -> Keys:
    """Where the copies of a segment are, by generation."""
    return lambda generation: segment_key(digest, generation)


def part_keys(digest: str) -> Keys:
    """Where the copies of a part are, by generation."""
    return lambda generation: part_key(digest, generation)


def condemned_key(run: str) -> str:
    """Where a run of gc lists what it condemned."""
    return f"gc/condemned/{_run(run)}.parquet"


def claimed_key(run: str) -> str:
    """Created by the one process that sweeps the run's list."""
    return f"gc/claimed/{_run(run)}"


def swept_key(run: str) -> str:
    """What says that a run's list was swept."""
    return f"gc/swept/{_run(run)}"


def damaged_key(key: str) -> str:
    """Where it is noted that `verify` found the object of this key damaged."""
    return f"{DAMAGED}{hashlib.sha256(key.encode()).hexdigest()}"


def stem(key: str) -> str:
    """What the keys of all generations of an object begin with.

    >>> stem(part_key("ab" * 32, generation=2)) == part_key("ab" * 32).removesuffix(".arrow")
    True
    """
    folder, _, file = key.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


def generation_of(key: str) -> int:
    """Which stored copy of its object a key names.

    >>> generation_of(part_key("ab" * 32, generation=2))
    2
    """
    parsed = parse_key(key)
    return parsed.generation if parsed else 0


def _generation(generation: int) -> str:
    if generation < 0:
        raise ValueError(f"no such generation: {generation}")
    return f".g{generation}" if generation else ""


def _run(run: str) -> str:
    if not re.fullmatch(_RUN, run):
        raise ValueError(f"not the name of a gc run: {run!r}")
    return run


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """What a key says of its object; members that its kind does not have are None.

    `kind`: lake, name, log, head, version, tag, pin, derived, txn, segment, part, condemned, claimed,
    swept, damaged, tmp.
    """

    kind: str
    name: str | None = None  # the dataset; of kind "name" only its lower-case spelling
    digest: str | None = None  # version id, fingerprint or sha256(txn), or of the object's own bytes
    generation: int = 0
    seq: int | None = None
    tag: str | None = None
    run: str | None = None


_RUN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
_SHA = r"(?P<digest>[0-9a-f]{64})"
_GENERATION = r"(?:\.g(?P<generation>[1-9][0-9]{0,8}))?"
_DATASET = r"datasets/(?P<name>[^%]+?)/"
_SHAPES = {
    kind: re.compile(shape, re.DOTALL)
    for kind, shape in {
        "lake": r"lake\.json",
        "name": r"names/(?P<name>[^/]+)\.json",
        "log": _DATASET + r"log/(?P<seq>[0-9]{20})\.json",
        "head": _DATASET + r"head",
        "version": _DATASET + rf"versions/{_SHA}{_GENERATION}\.json",
        "tag": _DATASET + r"tags/(?P<tag>[^/]+)\.json",
        "pin": _DATASET + rf"pins/{_SHA}\.json",
        "derived": _DATASET + rf"derived/{_SHA}\.json",
        "txn": _DATASET + rf"txns/{_SHA}\.json",
        "segment": rf"manifests/(?P<fan>[0-9a-f]{{2}})/{_SHA}{_GENERATION}\.parquet",
        "part": rf"shards/(?P<fan>[0-9a-f]{{2}})/{_SHA}{_GENERATION}\.arrow",
        "condemned": rf"gc/condemned/(?P<run>{_RUN})\.parquet",
        "claimed": rf"gc/claimed/(?P<run>{_RUN})",
        "swept": rf"gc/swept/(?P<run>{_RUN})",
        "damaged": rf"gc/damaged/{_SHA}",
        "tmp": r"tmp/[A-Za-z0-9._-]+",
    }.items()
}


def parse_key(key: str) -> ParsedKey | None:
    """What `key` names, or None where no object of a lake has such a key.

    >>> parse_key("datasets/a/b/log/00000000000000000007.json")
    ParsedKey(kind='log', name='a/b', digest=None, generation=0, seq=7, tag=None, run=None)
    """
    for kind, shape in _SHAPES.items():
        if match := shape.fullmatch(key):
            return _parsed(kind, match.groupdict())
    return None


def _parsed(kind: str, found: dict[str, str | None]) -> ParsedKey | None:
    name, digest, tag, seq = (found.get(member) for member in ("name", "digest", "tag", "seq"))
    if kind == "name" and name is not None:
        name = name.replace("%2F", "/")
    try:
        if name is not None:
            check_name(name)
        if tag is not None:
            check_tag(tag)
    except ValueError:
        return None
    if (kind == "name" and name != str(name).lower()) or (seq is not None and int(seq) < 1):
        return None
    if found.get("fan") and not str(digest).startswith(str(found["fan"])):
        return None
    return ParsedKey(
        kind,
        name,
        digest,
        int(found.get("generation") or 0),
        int(seq) if seq else None,
        tag,
        found.get("run"),
    )
