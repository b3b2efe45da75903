"""The benchmarks' own machinery: what is compared is the same data, and what is published is what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from benchmarks import __main__ as driver
from benchmarks import beside, ingest, peers, report
from benchmarks.bucket import BUCKET, served
from benchmarks.peers import tasks
from lake.errors import NotFoundError
from lake.stores import open_store


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, object]:
    """A little of D2, and where it is to be kept."""
    source, _ = ingest.stored("D2", 256, tmp_path)
    return {"source": str(source), "folder": str(tmp_path / "kept"), "shard_bytes": 2**19}


@pytest.mark.parametrize("name", ["lake", "arrow", "arrow_behind"])
def test_a_peer_keeps_what_it_is_given(name: str, tokens: dict[str, object]) -> None:
    """Asked through its own process; what it kept is read back and compared there, and then thrown away."""
    with peers.Peer(name) as peer:
        told = peer.ask("ingest", check=True, patience=0, **tokens)

        assert peer.versions["pyarrow"] == pa.__version__
    assert told["stored"] >= 381 * 2048 * 2
    assert told["syncs"] >= 2
    assert not Path(str(tokens["folder"])).exists()


def test_a_peer_that_loses_a_row_is_found_out(tokens: dict[str, object]) -> None:
    """The comparison can fail."""

    class Loser:
        SYNCS = True

        def ingest(self, batches: pa.RecordBatchReader, folder: Path, shard_bytes: int) -> Path:
            self.kept = batches.read_all().slice(1)
            return folder

        def read(self, folder: Path) -> list[pa.RecordBatch]:
            return self.kept.to_batches()

    with pytest.raises(AssertionError, match="not what went in"):
        tasks.ingest(Loser(), check=True, patience=0, **tokens)  # type: ignore[arg-type]


def test_an_edited_row_is_one_new_part(tmp_path: Path) -> None:
    """What is uploaded is counted by what lies there, not by what the peer says."""
    source, _ = ingest.stored("D3", 100, tmp_path)
    work = {"source": str(source), "folder": str(tmp_path / "kept"), "shard_bytes": 2**19}

    with peers.Peer("lake") as peer:
        told = peer.ask("recommit", patience=0, **work)

    assert told["shards"] == 1
    assert told["of_shards"] > 10
    assert 0 < told["uploaded"] < 2 * 2**19 + 50_000


def test_an_edit_changes_one_value() -> None:
    """The first of the row in the middle."""
    whole = tuple(ingest.SETS["D3"](rows=10_000))

    changed = pa.Table.from_batches(tasks.edited(whole))

    table = pa.Table.from_batches(whole)
    rows = [i for i in range(len(table)) if table.slice(i, 1) != changed.slice(i, 1)]
    assert rows == [4096 + 2048]


def test_errors_of_a_peer_come_back(tokens: dict[str, object]) -> None:
    """With its traceback; the process goes on answering."""
    with peers.Peer("arrow") as peer:
        with pytest.raises(peers.PeerFailed, match="FileNotFoundError"):
            peer.ask("ingest", patience=0, **{**tokens, "source": "nowhere"})
        assert peer.ask("ingest", patience=0, **tokens)["seconds"] > 0


def test_a_peer_without_its_packages_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No environment, or one whose library cannot be imported: the others run."""
    monkeypatch.setattr(peers, "HOME", tmp_path)
    missing: dict[str, str] = {}
    with ingest.running(("arrow", "dload"), missing) as asked:
        assert list(asked) == ["arrow"]
    assert "make bench-env" in missing["dload"]

    python = peers.interpreter("dload")
    python.parent.mkdir(parents=True)
    python.symlink_to(peers.interpreter("arrow"))  # has no dload
    with ingest.running(("dload",), missing) as asked:
        assert asked == {}
    assert "No module named" in missing["dload"]
    assert "dload is skipped" in capsys.readouterr().out


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, Path]:
    """A little of D1, kept by lake in a folder to be served; and that folder."""
    source, _ = ingest.stored("D1", 40, tmp_path)
    with peers.Peer("lake") as peer:
        peer.ask("store", source=str(source), folder=str(tmp_path / "bucket" / "lake"), shard_bytes=2**20)
    return source, tmp_path / "bucket"


def test_the_table_beside_peers_is_made_of_what_the_bucket_sent(
    images: tuple[Path, Path], tmp_path: Path
) -> None:
    """Every sample once an epoch, the bytes fetched once, an epoch that goes on exactly, a flipped bit found."""
    source, home = images
    with served(home) as bucket:
        told = beside.epochs("lake", bucket, tmp_path)
        promises = beside.promised("lake", bucket, home, tmp_path, source)

    assert sorted(told["keys"]) == list(range(1500))
    assert told["rows"] == [1500, 1500]
    size = sum(len(image) for _, image, _ in tasks.rows(ingest.SETS["D1"](40)))
    assert size < told["fetched"] < 1.5 * size  # a busy machine asks some again
    assert told["requests"] > 10
    assert told["disk"] > size
    assert promises["resume"] == {"exact": True, "repeated": 0, "lost": 0}
    assert promises["audit"]["raised"] == "IntegrityError"


def test_a_library_that_delivers_a_flipped_bit_is_shown_so(images: tuple[Path, Path]) -> None:
    """The comparison can fail: a reader that checks nothing hands out one wrong sample."""
    source, _ = images

    class Reader:
        def __init__(self, *_: object, **__: object) -> None: ...

        def epoch(self, number: int) -> Iterator[tasks.Item]:
            for key, image, label in tasks.rows(ingest.SETS["D1"](40)):
                yield key, bytes([image[0] ^ 1]) + image[1:] if key == "00000007" else image, label

    adapter = SimpleNamespace(Reader=Reader)
    told = tasks.audit(adapter, "", "", "", str(source))

    assert told == {"raised": None, "wrong": 1}
    assert beside._finds(told) == "delivered"
    assert beside._finds({"raised": None, "wrong": 40}) == "cut short"
    assert tasks.resume(adapter, "", "", "", 5) == {"exact": None}


def test_a_folder_is_served_as_a_bucket(tmp_path: Path) -> None:
    """Objects whole and in ranges, listed in pages, and counted."""
    for number in range(5):
        (tmp_path / f"a{number}").write_bytes(bytes(range(100)))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"x")
    with served(tmp_path) as bucket:
        store = open_store(f"s3://{BUCKET}", endpoint_url=bucket.url, region="us-east-1", anonymous=True)

        assert store.get("a1") == bytes(range(100))
        assert store.get_range("a1", 10, 10) == bytes(range(10, 20))
        assert [entry.key for entry in store.list("", start_after="a2")] == ["a3", "a4", "b/c"]
        with pytest.raises(NotFoundError):
            store.get("z")

        assert bucket.counts().bytes == 110
        assert bucket.counts().requests == 0


def test_quotients_are_taken_round_by_round() -> None:
    """A round that was slow for all leaves no trace."""
    assert report.ratio([1, 100, 1], [2, 200, 2]) == (0.5, 0)


def test_the_page_says_what_was_measured() -> None:
    """docs/benchmarks.md and its like are `python -m benchmarks --docs` of the figures that are kept."""
    assert driver.DOCS.read_text("utf-8") == driver.docs()
    for path, text in driver.documents().items():
        assert path.read_text("utf-8") == text
