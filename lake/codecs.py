"""Bytes of files as values: plain functions, for `decode(jpg="image")` or `map`.

What needs another package imports it when it is called.
"""

from __future__ import annotations

import importlib
import io
import json as _json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["audio", "csv", "image", "json", "npy", "text"]

_MOST_PIXELS = 2**26  # of a JPEG for the faster decoder; Pillow says what it thinks of larger ones


def image(data: bytes, *, mode: str | None = "RGB") -> np.ndarray[Any, np.dtype[Any]]:
    """An image as an array of its own, [height, width, channels] of uint8 (`mode="L"`: [height, width]).

    `mode` is one of Pillow's; None keeps the file's. A picture that its camera held turned is turned back. Where
    `simplejpeg` is installed, it decodes JPEG to RGB: the same values, up to eight times as fast.

    Raises:
        ValueError: the bytes are no image.
    """
    if mode == "RGB" and (pixels := _jpeg(data)) is not None:
        return pixels
    return np.array(picture(data, mode))


def picture(data: bytes, mode: str | None) -> PIL.Image.Image:
    """An image as Pillow has it, turned as its camera was held; `mode` and errors as for `image`."""
    pillow, ops = _needed("PIL.Image", "image", "Pillow"), _needed("PIL.ImageOps", "image", "Pillow")
    try:
        with pillow.open(io.BytesIO(data)) as opened:
            turned: PIL.Image.Image = ops.exif_transpose(opened)
            return turned if mode is None or turned.mode == mode else turned.convert(mode)
    except pillow.UnidentifiedImageError:  # which names the file object, by its address
        raise ValueError(f"no image that Pillow can read: {_beginning(data)}") from None
    except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ValueError(f"no image that Pillow can read: {error}") from error


def audio(data: bytes) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
    """A recording as float32 [channels, frames] within -1 and 1, and its sample rate.

    Raises:
        ValueError: the bytes are no recording.
    """
    soundfile = _needed("soundfile", "audio", "soundfile")
    try:
        frames, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        why = str(error.error_string).rstrip(".")  # without the address of the file object
        raise ValueError(f"no recording that libsndfile can read: {why}: {_beginning(data)}") from error
    return np.ascontiguousarray(frames.T), int(rate)


def text(data: bytes | str) -> str:
    """UTF-8 as a string, without a byte order mark."""
    return data if isinstance(data, str) else bytes(data).decode("utf-8-sig")


def json(data: bytes | str) -> Any:
    """What a JSON document says."""
    return _json.loads(text(data))


def csv(data: bytes | str) -> list[dict[str, Any]]:
    """The rows of a CSV file with a header, each a dict; columns of numbers, dates and such are that."""
    import pyarrow as pa
    import pyarrow.csv

    content = text(data).encode()
    if not content.strip():
        return []
    try:
        rows: list[dict[str, Any]] = pyarrow.csv.read_csv(io.BytesIO(content)).to_pylist()
    except pa.ArrowInvalid as error:
        raise ValueError(f"no CSV: {error}") from error
    return rows


def npy(data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """An array that `numpy.save` wrote; nothing is unpickled."""
    found: np.ndarray[Any, np.dtype[Any]] = np.load(io.BytesIO(data), allow_pickle=False)
    return found


def _beginning(data: bytes) -> str:
    """What is said of bytes that are not what they should be."""
    return f"{len(data):,} bytes that begin with {bytes(data[:16])!r}" if data else "there are no bytes"


def _jpeg(data: bytes) -> np.ndarray[Any, np.dtype[Any]] | None:
    """A JPEG as RGB by the faster decoder; None where there is none, or Pillow has more to do or to say."""
    if data[:3] != b"\xff\xd8\xff" or b"Exif\x00\x00" in data or (fast := _simplejpeg()) is None:
        return None
    try:
        height, width, colors, _ = fast.decode_jpeg_header(data)
        if colors not in ("YCbCr", "Gray") or height * width > _MOST_PIXELS:
            return None
        pixels: np.ndarray[Any, np.dtype[Any]] = fast.decode_jpeg(data, "RGB")
    except ValueError:
        return None
    return pixels


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def _needed(module: str, extra: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"lake.codecs.{extra} needs {package}: pip install 'lakeshard[{extra}]'", name=module
        ) from error
