"""A batch's files as what they hold: typed, named, and one bad file never loses the others."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import soundfile
from PIL import Image

from lake.live import Batch, FileChanged
from lake.live.arrivals import File, Sample
from lake.live.batch import Folder
from lake.live.journal import stamp_of

RATE = 16_000


def picture(kind: str = "PNG", size: tuple[int, int] = (5, 4), mode: str = "RGB") -> bytes:
    raw = io.BytesIO()
    Image.new(mode, size, 100).save(raw, kind)
    return raw.getvalue()


def recording(seconds: float = 0.5, channels: int = 1, kind: str = "WAV") -> bytes:
    raw = io.BytesIO()
    draw = np.random.default_rng(0)
    soundfile.write(raw, draw.uniform(-0.5, 0.5, (int(RATE * seconds), channels)), RATE, format=kind)
    return raw.getvalue()


@pytest.fixture
def files() -> dict[str, bytes]:
    """One of each, two of them bad."""
    table = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"n": [1, 2]}), table)
    return {
        "a.png": picture(), "b.jpg": picture("JPEG"), "c ü.webp": picture("WEBP"), "bad.jpg": b"\xff\xd8\xff no",
        "s.wav": recording(), "t.flac": recording(0.25, 2, "FLAC"),
        "r.csv": "\ufeffid, name ,id\n1,a,2.5\n2,b,3\n".encode(), "q.csv": b"id;when\n7;2026-11-30\n",
        "1.json": b'{"g": {"lat": 1.5}, "x": [7, 8]}', "2.json": b'[{"a": 1}, 3]', "3.jsonl": b'{"l": 1}\n\n{"l": 2}\n',
        "bad.json": b"{", "n.txt": "two words\nünd one more\n".encode(), "t.parquet": table.getvalue(), "z": b"?",
        "w.log": "wide".encode("utf-16"),
    }  # fmt: skip


def of_folder(folder: Path, files: dict[str, bytes]) -> Batch:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    found = {name: stamp_of(folder / name) for name in files}
    samples = [Sample(name, (File(name, stamp),), False) for name, stamp in found.items() if stamp]
    return Batch("batch-1", Folder(folder, {name: stamp for name, stamp in found.items() if stamp}), samples)


def of_zip(folder: Path, files: dict[str, bytes]) -> Batch:
    with zipfile.ZipFile(folder / "batch-1.zip", "w") as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return Batch.open(folder / "batch-1.zip")


@pytest.fixture(params=[of_folder, of_zip])
def batch(request, tmp_path, files) -> Batch:
    return request.param(tmp_path, files)


def test_everything_is_there_typed_and_named(batch):
    """Images, waveforms, coefficients, tables, records, texts; two errors, by name."""
    assert batch.id == "batch-1"
    images = dict(batch.images())
    assert {name: (image.mode, image.size) for name, image in images.items()} == dict.fromkeys(
        ["a.png", "b.jpg", "c ü.webp"], ("RGB", (5, 4))
    )
    tables = {name: table.to_pylist() for name, table in batch.tabular()}
    assert tables["r.csv"] == [{"id": 1, "name": "a", "id_2": 2.5}, {"id": 2, "name": "b", "id_2": 3.0}]
    assert [type(cell).__name__ for cell in tables["q.csv"][0].values()] == ["int", "date"]
    assert tables["t.parquet"] == [{"n": 1}, {"n": 2}]
    records = [(name, value) for name, value in batch.json(flatten=True)]
    assert records == [
        ("1.json", {"g.lat": 1.5, "x.0": 7, "x.1": 8}), ("2.json", {"a": 1}), ("2.json", {"value": 3}),
        ("3.jsonl", {"l": 1}), ("3.jsonl", {"l": 2}),
    ]  # fmt: skip
    assert [value for name, value in batch.json() if name == "2.json"] == [{"a": 1}, 3]
    texts = {text.name: text for text in batch.text()}
    assert texts["n.txt"][1:] == (["two words", "ünd one more"], 2, 5)
    assert texts["w.log"].lines == ["wide"]
    assert sorted(bad.name for bad in batch.errors) == ["bad.jpg", "bad.json"]
    assert all(bad.why for bad in batch.errors)
    summary = json.loads(json.dumps(batch.summary()))
    assert summary["files"] == 16
    assert summary["kinds"]["image"] == 4
    assert summary["kinds"]["bytes"] == 1
    assert [error["name"] for error in summary["errors"]] == [bad.name for bad in batch.errors]


def test_audio_is_a_waveform_or_coefficients(batch, files):
    """float32 [channels, T] as libsndfile reads it, MFCC [n, T] as librosa makes them of the channels' mean."""
    waves = {wave.name: wave for wave in batch.audio(raw=True)}
    assert {name: (wave.samples.shape, wave.samples.dtype, wave.rate) for name, wave in waves.items()} == {
        "s.wav": ((1, 8000), np.float32, RATE),
        "t.flac": ((2, 4000), np.float32, RATE),
    }
    reference, _ = soundfile.read(io.BytesIO(files["t.flac"]), dtype="float32")
    assert np.array_equal(waves["t.flac"].samples.T, reference)
    librosa = pytest.importorskip("librosa")
    for name, mfcc, rate in batch.audio(n_mfcc=13):
        wanted = librosa.feature.mfcc(y=waves[name].samples.mean(axis=0), sr=rate, n_mfcc=13)
        assert mfcc.dtype == np.float32
        assert np.allclose(mfcc, wanted, atol=1e-3)
    [first, _] = batch.audio()
    assert first.mfcc.shape == (20, 16)


def test_samples_are_grouped_as_a_commit_does_it(tmp_path):
    """By key, an absent field None; as often as asked."""
    batch = of_zip(tmp_path, {"d/x.wav": b"1", "d/x.json": b"{}", "y.wav": b"2"})
    samples = batch.samples()
    expected = [("d/x", {"json": b"{}", "wav": b"1"}), ("y", {"json": None, "wav": b"2"})]
    assert list(samples) == list(samples) == expected


def test_content_says_more_than_the_extension(tmp_path):
    """A picture is one whatever it is called."""
    wave = recording()
    batch = of_zip(
        tmp_path, {"p.txt": picture(), "q": wave, "r.dat": picture("WEBP"), "s.bin": b"RIFF????WAVX"}
    )
    assert batch.kinds == {"p.txt": "image", "q": "audio", "r.dat": "image", "s.bin": "bytes"}


def test_a_file_that_changed_is_never_taken_for_what_had_arrived(tmp_path):
    """Overwritten, gone, or written to while it is read."""
    batch = of_folder(tmp_path, {"a.txt": b"1", "b.txt": b"2", "c.txt": b"3"})
    (tmp_path / "a.txt").write_bytes(b"other")
    (tmp_path / "b.txt").unlink()
    for name in ("a.txt", "b.txt"):
        with pytest.raises(FileChanged, match=name):
            batch.read(name)
    opened = batch.stream("c.txt")
    assert opened.__enter__().read() == b"3"
    (tmp_path / "c.txt").write_bytes(b"more")
    with pytest.raises(FileChanged):
        opened.__exit__(None, None, None)


def test_memory_is_bounded_by_one_member(tmp_path):
    """Twenty files are never there at once: some copies of one of them are."""
    size = 1 << 18
    batch = of_folder(tmp_path, {f"{n}.txt": b"x" * size for n in range(20)})
    tracemalloc.start()
    try:
        assert sum(text.line_count for text in batch.text()) == 20
        assert sum(len(fields["txt"]) for _, fields in batch.samples()) == 20 * size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * size


def test_a_broken_table_is_an_error_and_an_empty_one_is_none(tmp_path):
    """Whatever a library raises for it."""
    batch = of_zip(
        tmp_path, {"a.csv": b"", "b.csv": b"x,y\n1\n", "c.parquet": b"PAR1" + struct.pack("<q", 7)}
    )
    assert [(name, table.num_rows) for name, table in batch.tabular()] == [("a.csv", 0)]
    assert [bad.name for bad in batch.errors] == ["b.csv", "c.parquet"]


def test_a_bad_picture_or_recording_is_listed_without_addresses(tmp_path: Path) -> None:
    """What is wrong with a file is said by its name and bytes."""
    files = {"a.png": picture()[:40], "b.png": b"\x89PNG\r\n\x1a\n", "c.wav": b"RIFF\0\0\0\0WAVEjunk"}
    batch = of_folder(tmp_path, files)

    assert [*batch.images(), *batch.audio()] == []
    assert sorted(bad.name for bad in batch.errors) == sorted(files)
    assert not any(" at 0x" in bad.why for bad in batch.errors)
