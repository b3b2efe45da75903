"""Paths and globs, local, `s3://` or any URL that pyarrow or fsspec knows, as files that can be opened.

Reads names and sizes, never contents.
"""

from __future__ import annotations

import glob
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from lake.convert.source import Access
from lake.errors import NotFoundError, StoreError
from lake.stores import open_store

S3 = "s3://"
_WILD = re.compile(r"[*?\[]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, slots=True)
class File:
    """One input file. `name` is what the user would call it."""

    name: str
    path: str  # as `filesystem` calls it
    size: int
    filesystem: fs.FileSystem

    @property
    def local(self) -> bool:
        """Whether the file lies on this machine, so that it can be mapped."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def open(self) -> pa.NativeFile:
        """A seekable file, at its start."""
        with reaching(self.name):
            return self.filesystem.open_input_file(self.path)


def is_remote(path: str) -> bool:
    """Whether the path is a URL rather than the name of a local file."""
    return _URL.match(path) is not None


def find(pattern: str, access: Access) -> list[File]:
    """The file of that name, else those that match it as a glob (`*`, `?`, `[...]`, `**`), by name.

    `{a,b}` and `{000..009}` stand for several names, as WebDataset writes them, where no file has that one.

    Raises:
        NotFoundError: no such file. ValueError: no file matches the glob, or the URL's scheme is unknown.
    """
    if _BRACES.search(pattern) and (is_remote(pattern) or not Path(pattern).exists()):
        return [file for each in braced(pattern) for file in find(each, access)]
    if is_remote(pattern):
        files = _find_remote(pattern, access)
    elif Path(pattern).exists():
        files = [_local(pattern)]
    else:
        found = sorted(glob.glob(pattern, recursive=True)) if _WILD.search(pattern) else []  # noqa: PTH207
        files = [_local(name) for name in found if Path(name).is_file()]
    if not files and pattern.startswith(S3):
        _check_bucket(pattern, access)
    if not files and _WILD.search(pattern):
        raise ValueError(f"no file matches {pattern!r}")
    if not files:
        raise NotFoundError(
            f"no file or folder {pattern!r}" + ("" if is_remote(pattern) else f" (in {Path.cwd()})")
        )
    return files


@contextmanager
def reaching(name: str) -> Iterator[None]:
    """What a store says when it cannot be read, as one error that names the object."""
    try:
        yield
    except FileNotFoundError:
        raise NotFoundError(f"no file {name!r}") from None
    except OSError as error:
        if not is_remote(name):
            raise
        why = str(error).splitlines()[0]
        raise StoreError(
            f"cannot read {name}: {why}. Check the bucket's name, the credentials (the standard AWS chain), "
            "endpoint_url, or pass anonymous=True for a public bucket"
        ) from error


def _check_bucket(pattern: str, access: Access) -> None:
    """NotFoundError if what is missing is the bucket: Arrow does not tell."""
    bucket = pattern.removeprefix(S3).partition("/")[0]
    store = open_store(
        S3 + bucket, endpoint_url=access.endpoint_url, region=access.region, anonymous=access.anonymous
    )
    if not store.exists():
        raise NotFoundError(f"bucket {bucket!r} does not exist: correct the name ({pattern})")


def _local(name: str) -> File:
    return File(name, os.fspath(name), Path(name).stat().st_size, fs.LocalFileSystem())


def braced(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for.

    >>> braced("x-{08..10}.{tar,zip}")
    ['x-08.tar', 'x-08.zip', 'x-09.tar', 'x-09.zip', 'x-10.tar', 'x-10.zip']
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    choices = found[1].split(",")
    if run := _RANGE.fullmatch(found[1]):
        choices = [f"{number:0{len(run[1])}}" for number in range(int(run[1]), int(run[2]) + 1)]
    return [
        each
        for choice in choices
        for each in braced(pattern[: found.start()] + choice + pattern[found.end() :])
    ]


def _find_remote(pattern: str, access: Access) -> list[File]:
    with reaching(pattern):
        store, path = _system(pattern, access)
        prefix = pattern.removesuffix(path)  # of the names that a user knows
        info = store.get_file_info(path)
        if info.type == fs.FileType.File:
            return [File(pattern, path, info.size, store)]
        if not _WILD.search(path):
            return []
        fixed = path[: _WILD.search(path).start()].rpartition("/")[0]  # type: ignore[union-attr]
        listed = store.get_file_info(fs.FileSelector(fixed, recursive=True, allow_not_found=True))
    matches = re.compile(glob_regex(path)).fullmatch
    chosen = [info for info in listed if info.type == fs.FileType.File and matches(info.path)]
    return [
        File(prefix + info.path, info.path, info.size, store) for info in sorted(chosen, key=lambda i: i.path)
    ]


def _system(url: str, access: Access) -> tuple[fs.FileSystem, str]:
    """The filesystem of a URL, and what the file is called there: pyarrow's where it has one, else fsspec's."""
    scheme, _, rest = url.partition("://")
    if url.startswith(S3):
        return _s3(rest.partition("/")[0], access), rest
    fsspec = _fsspec()
    if fsspec is None or scheme in ("gs", "gcs", "hdfs", "file"):
        try:
            return fs.FileSystem.from_uri(url)  # type: ignore[no-any-return]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if fsspec is None:
                raise ValueError(
                    f"{url}: pyarrow has no filesystem for {scheme}://; with fsspec and its package for {scheme} "
                    "installed it can be read"
                ) from None
    try:
        found, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{url}: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


def _fsspec() -> Any:
    """The package, None where it is not installed."""
    try:
        return importlib.import_module("fsspec")
    except ImportError:
        return None


def _s3(bucket: str, access: Access) -> fs.FileSystem:
    options: dict[str, Any] = {"anonymous": access.anonymous, "region": access.region}
    endpoint = (
        access.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    elif access.region is None and not os.environ.get("AWS_REGION"):
        options["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(**options)


_TOKENS = (  # of a glob, and what they are in a regular expression
    (re.compile(r"\*\*/"), r"(?:(?!\.)[^/]+/)*"),
    (re.compile(r"\*\*$"), r"(?:(?!\.)[^/]+/)*(?!\.)[^/]*"),
    (re.compile(r"\*+"), r"[^/]*"),
    (re.compile(r"\?"), r"[^/]"),
    (re.compile(r"\[!([^\]]+)\]"), None),
    (re.compile(r"\[([^\]]+)\]"), None),
)


def glob_regex(pattern: str) -> str:
    """A regular expression for a glob: `*` stays within a folder, `**/` spans any number, neither finds
    what is hidden.

    >>> names = "b/x.csv", "b/c/d/x.csv", "b/.c/x.csv", "b/x.csv.gz"
    >>> [bool(re.fullmatch(glob_regex("b/**/*.csv"), name)) for name in names]
    [True, True, False, False]
    """
    out, at = "", 0
    while at < len(pattern):
        found, regex = next(
            ((m, regex) for token, regex in _TOKENS if (m := token.match(pattern, at))), (None, None)
        )
        if found is None:
            out, at = out + re.escape(pattern[at]), at + 1
            continue
        if at == 0 or pattern[at - 1] == "/":
            out += r"(?!\.)" if not found[0].startswith("**") else ""
        out += regex or f"[{'^' if found[0][1] == '!' else ''}{found[1]}]"
        at = found.end()
    return out
