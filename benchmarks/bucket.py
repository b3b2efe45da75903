"""A folder as a bucket that can be read: just enough of S3 for every library here, in a process of its own.

It answers GET (ranges too), HEAD and ListObjectsV2, anonymous or signed, and counts what it sent. It writes
nothing, checks nothing and adds no delay, so that what is measured is the client.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bench"
COUNTS = "/-/counts"


@dataclass(frozen=True, slots=True)
class Counts:
    """What a bucket has sent since it was last asked."""

    requests: int
    bytes: int  # of bodies of objects


class Bucket:
    """A running bucket: `url` is its endpoint, `BUCKET` its name."""

    def __init__(self, url: str) -> None:
        self.url = url

    def counts(self) -> Counts:
        """What was sent since the last call."""
        with urllib.request.urlopen(self.url + COUNTS) as reply:
            return Counts(**json.load(reply))


@contextmanager
def served(folder: Path) -> Iterator[Bucket]:
    """The folder as a bucket, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bucket", str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield Bucket(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    sent: ClassVar[list[int]] = [0, 0]  # requests, bytes

    def log_message(self, *_: object) -> None:
        """Nothing: stderr belongs to the benchmark."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        url = urlsplit(self.path)
        if url.path == COUNTS:
            requests, size = self.sent
            self.sent[:] = [0, 0]
            self._reply(200, json.dumps({"requests": requests, "bytes": size}).encode(), "application/json")
            return
        self.sent[0] += 1
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        if not key:
            self._reply(200, _listing(self.folder, parse_qs(url.query)) if url.query else b"")
            return
        path = self.folder / key
        if not path.is_file():
            self._reply(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>" * body)
            return
        self._object(path, body=body)

    def _object(self, path: Path, *, body: bool) -> None:
        """A file, or the range of it that is asked for."""
        size = path.stat().st_size
        start, end = _range(self.headers.get("Range"), size)
        self.send_response(206 if self.headers.get("Range") else 200)
        if self.headers.get("Range"):
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.md5(str(path).encode()).hexdigest()}"')
        self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        self.end_headers()
        if body:
            self.wfile.flush()
            with path.open("rb") as file:
                while start < end:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)
            self.sent[1] += end - _range(self.headers.get("Range"), size)[0]

    def _reply(self, status: int, text: bytes, kind: str = "application/xml") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text)


def _range(asked: str | None, size: int) -> tuple[int, int]:
    """First byte and end of what a Range header asks for.

    >>> _range(None, 10), _range("bytes=2-3", 10), _range("bytes=4-", 10), _range("bytes=-3", 10)
    ((0, 10), (2, 4), (4, 10), (7, 10))
    """
    if not asked:
        return 0, size
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _listing(folder: Path, query: dict[str, list[str]]) -> bytes:
    """ListObjectsV2."""
    prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
    after = query.get("continuation-token", query.get("start-after", [""]))[0]
    most = int(query.get("max-keys", ["1000"])[0])
    keys = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    shown: dict[str, str] = {}
    for key in keys:
        if not key.startswith(prefix):
            continue
        rest, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        name = prefix + rest + cut if cut else key
        if name > after and name not in shown and not (cut and after.startswith(name)):
            shown[name] = "" if cut else key
    page = list(shown.items())[:most]
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{(folder / key).stat().st_size}</Size>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;0&quot;</ETag>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        if key
        else f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        for name, key in page
    )
    more = len(shown) > most
    token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if more else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
        f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}"
        "</ListBucketResult>"
    ).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Nothing: a client that has what it wanted may hang up."""


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[1])
    server = _Server(("127.0.0.1", 0), _Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
