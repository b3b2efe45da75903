"""Codecs: bytes of files as values."""

from __future__ import annotations

import io
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lake import codecs


def saved(write: Any) -> bytes:
    """What `write` writes to a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def test_image() -> None:
    """Pixels as an array of its own, in the mode asked for; a turned picture upright."""
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 3), np.uint8)
    picture = pillow.fromarray(pixels)
    png = saved(lambda file: picture.save(file, "PNG"))
    found = codecs.image(png)
    assert np.array_equal(found, pixels)
    found += 1
    assert codecs.image(png, mode="L").shape == (4, 6)
    grey = saved(lambda file: picture.convert("L").save(file, "PNG"))
    assert codecs.image(grey).shape == (4, 6, 3)
    assert codecs.image(grey, mode=None).shape == (4, 6)
    exif = pillow.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned = saved(lambda file: picture.save(file, "JPEG", exif=exif.tobytes()))
    assert codecs.image(turned).shape == (6, 4, 3)
    for broken in (b"", b"no image", png[:40]):
        with pytest.raises(ValueError, match="no image"):
            codecs.image(broken)


def photographs() -> list[bytes]:
    """JPEG files of scikit-image and scikit-learn, and one of them saved in other ways."""
    pillow = pytest.importorskip("PIL.Image")
    packages = [find_spec(name).submodule_search_locations[0] for name in ("skimage", "sklearn")]
    paths = [path for package in packages for path in sorted(Path(package).rglob("*.jpg"))]
    assert len(paths) >= 4
    photo = pillow.open(paths[0]).convert("RGB").resize((53, 41))
    ways: list[dict[str, Any]] = [
        {"subsampling": 1, "quality": 30},
        {"subsampling": 2},
        {"progressive": True},
    ]
    saves = [partial(photo.save, format="JPEG", **way) for way in ways]
    saves += [partial(photo.convert(mode).save, format="JPEG") for mode in ("L", "CMYK")]
    return [*(path.read_bytes() for path in paths), *map(saved, saves)]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_faster_decoder_gives_the_same_values(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is installed changes no pixel, so a fingerprint need not know; pixels are the caller's own."""
    data = photographs()
    fast = pytest.importorskip("simplejpeg")
    used = []
    monkeypatch.setattr(fast, "decode_jpeg", lambda *how, was=fast.decode_jpeg: used.append(1) or was(*how))
    found = [codecs.image(each, mode=mode) for each in data]
    upright = sum(b"Exif\0\0" not in each for each in data)
    assert len(used) == (upright - 1 if mode == "RGB" else 0)  # turned ones and CMYK are Pillow's
    monkeypatch.setattr(codecs, "_simplejpeg", lambda: None)
    for each, pixels in zip(data, found, strict=True):
        assert np.array_equal(codecs.image(each, mode=mode), pixels)
        pixels += 1


def test_a_broken_jpeg_is_an_error_with_either_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, or larger than anything that should be decoded."""
    data = photographs()[-3]
    size = data.index(b"\xff\xc2") + 5
    huge = data[:size] + b"\xff\xff\xff\xff" + data[size + 4 :]
    for broken in (data[:300], huge):
        with pytest.raises(ValueError, match="no image"):
            codecs.image(broken)
        with monkeypatch.context() as patch:
            patch.setattr(codecs, "_simplejpeg", lambda: None)
            with pytest.raises(ValueError, match="no image"):
                codecs.image(broken)


def test_audio() -> None:
    """float32 [channels, frames] and the rate."""
    soundfile = pytest.importorskip("soundfile")
    wave = np.sin(np.linspace(0, 60, 800, dtype=np.float32)).reshape(400, 2) / 2
    data = saved(lambda file: soundfile.write(file, wave, 8000, format="WAV", subtype="FLOAT"))
    found, rate = codecs.audio(data)
    assert rate == 8000
    assert found.dtype == np.float32
    assert np.array_equal(found, wave.T)
    with pytest.raises(ValueError, match="no recording"):
        codecs.audio(b"no recording")


def test_text_and_json() -> None:
    """UTF-8, with or without a byte order mark; strings stay."""
    assert codecs.text("é".encode()) == codecs.text("é".encode("utf-8-sig")) == codecs.text("é") == "é"
    assert codecs.json(b'\xef\xbb\xbf{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(ValueError, match="Expecting"):
        codecs.json(b"{")


def test_csv() -> None:
    """Rows as dicts, numbers as numbers, a clean header."""
    rows = codecs.csv("id,x,day\n1,0.5,2026-01-02\n2,,\n".encode("utf-8-sig"))
    assert [row["id"] for row in rows] == [1, 2]
    assert [row["x"] for row in rows] == [0.5, None]
    assert str(rows[0]["day"]) == "2026-01-02"
    assert codecs.csv(b"") == codecs.csv(b"a,b\n") == []
    with pytest.raises(ValueError, match="no CSV"):
        codecs.csv(b"a,b\n1,2,3\n")


def test_npy() -> None:
    """An array that may be written to; nothing is unpickled."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    found = codecs.npy(saved(lambda file: np.save(file, array)))
    found += 1
    assert np.array_equal(found, array + 1)
    with pytest.raises(ValueError, match=r"[Pp]ickle"):
        codecs.npy(saved(lambda file: np.save(file, np.array([{}]), allow_pickle=True)))


@pytest.mark.parametrize(("codec", "module"), [("image", "PIL.Image"), ("audio", "soundfile")])
def test_a_missing_package_is_named_with_its_extra(
    codec: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"lakeshard\[{codec}\]"):
        getattr(codecs, codec)(b"")


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"RIFF or not, this is neither sound nor picture"]
)
def test_undecodable_bytes_are_named_by_their_beginning(data: bytes) -> None:
    """Not by the address of the object that held them."""
    for decode, module in ((codecs.image, "PIL"), (codecs.audio, "soundfile")):
        pytest.importorskip(module)
        with pytest.raises(ValueError, match=r"no (image|recording) that") as refused:
            decode(data)
        assert " at 0x" not in str(refused.value)
        assert (repr(data[:16]) if data else "there are no bytes") in str(refused.value)
