"""Archives on the web, and folders taken for archives."""

from __future__ import annotations

import http.server
import pickle
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lake
from lake.archives import recompress, web
from lake.errors import ArchiveError, NotFoundError, StoreError
from tests.archives.packing import KINDS, packed, some

MEMBERS = some()


class Web(http.server.ThreadingHTTPServer):
    """A server of files in memory, which may fail now and then or know no ranges."""

    files: dict[str, bytes]
    failures = 0
    ranges = True
    sent = 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Web

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        data = self.server.files.get(self.path)
        if self.server.failures and body:
            self.server.failures -= 1
            self.send_error(503)
            return
        if data is None:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked and self.server.ranges:
            start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            data = data[start:end]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.server.sent += len(data)
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(monkeypatch) -> Iterator[Web]:
    monkeypatch.setattr(web, "_PAUSE", 0.001)
    with Web(("127.0.0.1", 0), Handler) as server:
        server.files = {}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url(server: Web, name: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_on_the_web_is_like_one_on_disk(served, kind):
    """Read by ranges, with a server that fails now and then."""
    served.files[f"/x.{kind}"] = packed(kind, MEMBERS)
    served.failures = 2
    opened = lake.archive(url(served, f"x.{kind}"))

    assert list(opened) == [data for _, data in MEMBERS]
    order = random.Random(0).sample(range(len(MEMBERS)), 20)
    assert pickle.loads(pickle.dumps(opened)).read_many(order) == [MEMBERS[i][1] for i in order]


def test_little_of_a_large_file_is_fetched(served):
    """The directory and one member of a zip."""
    served.files["/x.zip"] = packed("zip", some(300, largest=60_000))
    opened = lake.archive(url(served, "x.zip"))
    size = len(opened[17])

    assert len(served.files["/x.zip"]) > 4_000_000
    assert served.sent <= size + (64 << 10) + 300 * 80


def test_what_the_web_lacks_is_said(served):
    """No file; no ranges; no answer."""
    served.files["/x.zip"] = packed("zip", MEMBERS)
    with pytest.raises(NotFoundError, match=r"y\.zip"):
        lake.archive(url(served, "y.zip"))
    served.ranges = False
    with pytest.raises(StoreError, match="ranges"):
        lake.archive(url(served, "x.zip"))
    served.ranges, served.failures = True, 100
    with pytest.raises(StoreError, match="503") as raised:
        lake.archive(url(served, "x.zip"))
    assert raised.value.retryable


def test_a_folder_is_an_archive_of_its_files(tmp_path):
    """By name; links are counted; what changed since is refused."""
    for name, data in MEMBERS:
        path = tmp_path / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "d" / "link").symlink_to("/etc/passwd")
    opened = lake.archive(tmp_path / "d")

    assert dict(zip(opened.names, opened, strict=True)) == dict(MEMBERS)
    assert opened.names == tuple(sorted(opened.names, key=lambda name: Path(name).parts))
    assert (opened.kind, opened.skipped, opened.size) == (
        "folder",
        {"link": 1},
        sum(len(d) for _, d in MEMBERS),
    )
    assert pickle.loads(pickle.dumps(opened))[3] == opened[3]
    (tmp_path / "d" / opened.names[3]).write_bytes(opened[3] + b"more")
    with pytest.raises(ArchiveError, match="changed"):
        opened[3]
    (tmp_path / "d" / opened.names[4]).unlink()
    assert [member.name for member, wrong in opened.verify() if wrong] == list(opened.names[3:5])


@pytest.mark.parametrize(
    ("path", "kind"), [("", ValueError), (b"x.zip", TypeError), (3, TypeError), (None, TypeError)]
)
def test_what_is_no_path_is_refused(path: Any, kind: type[Exception]) -> None:
    """An empty text does not stand for the working directory."""
    with pytest.raises(kind, match="archive"):
        lake.archive(path)


@pytest.mark.parametrize("ratio", ["250", 0, -1, float("nan"), None])
def test_a_ratio_is_a_number_above_zero(tmp_path: Path, ratio: Any) -> None:
    """Otherwise every archive would be a bomb, or none."""
    with pytest.raises(ValueError, match="max_ratio is how many times larger"):
        lake.archive(tmp_path, max_ratio=ratio)


def test_sizes_of_frames_are_whole_numbers(tmp_path: Path) -> None:
    """And levels of compression."""
    for name, value in (("level", "3"), ("frame_bytes", 1e6)):
        with pytest.raises(TypeError, match=f"{name} is a whole number"):
            recompress(tmp_path / "a.tar", tmp_path / "b.tar.zst", **{name: value})
    with pytest.raises(ValueError, match="frame_bytes is 1 or more"):
        recompress(tmp_path / "a.tar", tmp_path / "b.tar.zst", frame_bytes=0)
