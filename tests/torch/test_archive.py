"""The members of archives through a DataLoader: each exactly once, decoded, with whatever workers."""

from __future__ import annotations

import io
import json
import wave
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import lake
from lake.errors import ArchiveError
from lake.torch import ArchiveDataset
from tests.archives.packing import KINDS, pack, some, zip_of

MEMBERS = some(40)


@pytest.fixture(autouse=True)
def _configured_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_CACHE_DIR", str(tmp_path / "configured"))
    monkeypatch.setenv("LAKE_CACHE_BUDGET", "64MiB")


def image(color: tuple[int, int, int], size: tuple[int, int], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, kind)
    return file.getvalue()


def sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(np.arange(200, dtype="<i2").tobytes())
    return file.getvalue()


def kept(items: list) -> list:
    return items


@pytest.mark.parametrize(("method", "kind"), [("spawn", "tar.zst"), *(("fork", kind) for kind in KINDS)])
def test_each_member_comes_once_an_epoch(tmp_path, method, kind):
    """Shuffled, two workers that are made anew each epoch, after the parent has read; nothing is written."""
    path = pack(tmp_path, kind, MEMBERS)
    dataset = ArchiveDataset(path)
    assert dataset[0] == MEMBERS[0][1]
    loader = DataLoader(
        dataset, batch_size=7, shuffle=True, num_workers=2, collate_fn=kept, multiprocessing_context=method
    )

    for epoch in range(2 if method == "fork" else 1):  # spawned workers import torch for many seconds
        before = dataset.archive.counters
        found = Counter(item for batch in loader for item in batch)
        assert found == Counter(data for _, data in MEMBERS)
        after = dataset.archive.counters
        if epoch and kind != "tar":  # a plain tar is a copy away
            hits, misses = after.hits - before.hits, after.misses - before.misses
            assert hits >= 0.95 * (hits + misses)
            assert hits >= len(MEMBERS) / 3
    assert {each.name for each in tmp_path.iterdir()} <= {path.name, "configured"}


def test_images_stack(tmp_path):
    """As [B, 3, H, W] of uint8, scaled to one size; colors and corners are where they were."""
    corner = np.zeros((8, 8, 3), np.uint8)
    corner[:4, 4:] = (10, 20, 30)
    file = io.BytesIO()
    Image.fromarray(corner).save(file, "PNG")
    members = [
        ("a/1.png", image((255, 0, 9), (4, 6))),
        ("a/2.JPG", image((0, 0, 0), (30, 20), "JPEG")),
        ("b.png", file.getvalue()),
    ]
    dataset = ArchiveDataset(pack(tmp_path, "zip", members), decode="image", target_size=(8, 8))

    (batch,) = DataLoader(dataset, batch_size=3)
    assert (batch.shape, batch.dtype) == ((3, 3, 8, 8), torch.uint8)
    assert batch[0, :, 3, 3].tolist() == [255, 0, 9]
    assert torch.equal(batch[2], torch.from_numpy(corner).permute(2, 0, 1))
    assert ArchiveDataset(dataset.archive, decode="image")[1].shape == (3, 20, 30)


@pytest.mark.parametrize("size", [5, (0, 5), "ab", (2.5, 3), (-1, 2), (10**6, 10**6), (1, 2, 3)])
def test_a_size_that_no_image_has_is_refused_at_once(tmp_path, size):
    """Not blamed on the first member."""
    (tmp_path / "a.zip").write_bytes(zip_of([("a.png", image((1, 2, 3), (4, 4)))]))
    with pytest.raises(ValueError, match=r"target_size is \(height, width\)"):
        ArchiveDataset(tmp_path / "a.zip", decode="image", target_size=size)


def test_auto_decodes_by_extension(tmp_path):
    """What it does not know stays bytes."""
    array = io.BytesIO()
    np.save(array, np.arange(3))
    members = [
        ("x.json", b'{"a": [1]}'),
        ("x.csv", b"a,b\n1,x\n"),
        ("x.txt", "\ufeffgrün".encode()),
        ("x.npy", array.getvalue()),
        ("x.png", image((1, 2, 3), (5, 4))),
        ("x.wav", sound()),
        ("x.weird", b"\0"),
    ]
    items = [*ArchiveDataset(pack(tmp_path, "tar", members), decode="auto")]

    assert items[:3] == [{"a": [1]}, [{"a": 1, "b": "x"}], "grün"]
    assert items[3].tolist() == [0, 1, 2]
    assert items[4].shape == (3, 4, 5)
    frames, rate = items[5]
    assert (frames.shape, frames.dtype, rate) == ((2, 100), torch.float32, 8000)
    assert items[6] == b"\0"


def test_include_target_and_transform(tmp_path):
    """Globs choose, hidden members never come; a function gets name and bytes; the target is one of the name."""
    members = [
        ("cat/1.json", b"1"),
        ("dog/2.json", b"2"),
        ("README", b""),
        ("__MACOSX/._1.json", b"?"),
        ("cat/.x.json", b"?"),
    ]
    path = pack(tmp_path, "zip", members)
    dataset = ArchiveDataset(
        path,
        decode="json",
        transform=lambda x: x * 10,
        include="*.json",
        target=lambda name: name.split("/")[0],
    )

    assert [*dataset] == [(10, "cat"), (20, "dog")]
    assert dataset.names == ["cat/1.json", "dog/2.json"]
    assert [*ArchiveDataset(path, decode=lambda name, data: (name, data), include=["dog/*", "READ*"])] == [
        ("dog/2.json", b"2"),
        ("README", b""),
    ]
    with pytest.raises(ValueError, match=r"left of 5 by include='\*\.jpg'"):
        ArchiveDataset(path, include="*.jpg")
    with pytest.raises(ValueError, match="no decode='jpg'"):
        ArchiveDataset(path, decode="jpg")


def test_a_bad_member_is_named(tmp_path):
    """Damaged, or no image; through workers as well; a user's error says where it was."""
    path = pack(
        tmp_path, "zip", [("a.png", image((0, 0, 0), (2, 2))), ("b.png", b"no image"), ("c.json", b"{")]
    )
    dataset = ArchiveDataset(path, decode="auto")
    with pytest.raises(ArchiveError, match=r"'b\.png' in .*cannot be decoded as image"):
        dataset[1]
    with pytest.raises(ArchiveError, match=r"'c\.json' in .*json"):
        [*DataLoader(dataset, batch_size=None, num_workers=1, sampler=[0, 2])]

    def fails(item: bytes) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        ArchiveDataset(path, transform=fails)[0]
    assert "a.png" in raised.value.__notes__[0]

    raw = bytearray(zip_of([("x.txt", b"hello" * 100)]))
    raw[40] ^= 255
    (tmp_path / "y.zip").write_bytes(raw)
    with pytest.raises(ArchiveError, match=r"'x\.txt'"):
        [*DataLoader(ArchiveDataset(tmp_path / "y.zip"), num_workers=1)]


def test_a_bucket_feeds_workers(s3_url):
    """A zip and a tar.zst in a bucket, two workers."""
    from lake.stores import open_store
    from tests.archives.packing import packed

    for kind in ("zip", "framed.tar.zst"):
        open_store(s3_url).put(f"x.{kind}", packed(kind, MEMBERS))
        dataset = ArchiveDataset(lake.archive(f"{s3_url}/x.{kind}"))
        dataset[3]
        loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=2, collate_fn=kept)
        assert Counter(i for batch in loader for i in batch) == Counter(data for _, data in MEMBERS)


def test_json_values_are_python(tmp_path):
    """Nothing is made of them."""
    value = {"a": None, "b": [1.5, "x"]}
    path = pack(tmp_path, "tar.gz", [("a.json", json.dumps(value).encode())])
    assert ArchiveDataset(path, decode="json")[0] == value
