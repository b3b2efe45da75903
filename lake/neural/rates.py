"""Rate and distortion: what codes cost and what they lose, beside codecs of files, on the same images."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import zstandard
from PIL import Image

from lake.neural.codes import Quantiser
from lake.neural.encoding import CODE, decode
from lake.neural.models import Autoencoder

if TYPE_CHECKING:
    from lake.dataset import Dataset

Pixels = npt.NDArray[np.uint8]

QUALITIES = (5, 15, 30, 50, 75, 90)


@dataclass(frozen=True, slots=True)
class Rate:
    """What a codec makes of some images."""

    codec: str
    bits: float  # per value (a pixel has one for each channel)
    psnr: float  # decibels below 255; infinite where nothing is lost


def psnr(original: npt.ArrayLike, decoded: npt.ArrayLike, *, peak: float = 255.0) -> float:
    """Peak signal to noise ratio in decibels, of values from 0 to `peak`; infinite where nothing is lost.

    Raises:
        ValueError: arrays of different shapes, or without values; a peak that is not above 0.
    """
    one, other = np.asarray(original, np.float64), np.asarray(decoded, np.float64)
    if one.shape != other.shape or not one.size:
        raise ValueError(f"arrays of one shape are compared, not {list(one.shape)} and {list(other.shape)}")
    if not peak > 0:
        raise ValueError(f"peak is the greatest value there may be, above 0: {peak}")
    return _decibels(float(np.square(one - other).mean()), peak)


def _decibels(square: float, peak: float = 255.0) -> float:
    """What a mean square error is, below a peak."""
    return float("inf") if not square else float(10 * np.log10(peak**2 / square))


def file_rates(images: Pixels, *, qualities: Sequence[int] = QUALITIES) -> list[Rate]:
    """PNG, zstd and JPEG of several qualities, each image [C, H, W] of [n, C, H, W] by itself; C is 1 or 3.

    Raises:
        ValueError: not such images of uint8, or none.
    """
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1] not in (1, 3) or not images.size:
        raise ValueError(
            f"images are [n, C, H, W] of uint8, C 1 or 3, not {list(images.shape)} of {images.dtype}"
        )
    found = [
        Rate("PNG", _bits(map(_png, images), images), float("inf")),
        Rate("zstd", _bits((zstandard.compress(one.tobytes(), 19) for one in images), images), float("inf")),
    ]
    for quality in qualities:
        files = [_file(one, "JPEG", quality=quality) for one in images]
        decoded = np.stack([_pixels(data) for data in files])
        found.append(Rate(f"JPEG {quality}", _bits(iter(files), images), psnr(images, decoded)))
    return found


def code_rate(ds: Dataset, codes: Dataset, model: Autoencoder | None = None) -> Rate:
    """What the codes of a dataset's images cost, as numbers without their scales, and lose.

    Raises:
        ValueError: `codes` are not what `encode` made of `ds`.
    """
    quantiser, field = Quantiser.of(codes), codes.recipe["field"]
    if len(codes) != len(ds) or field not in ds.schema.names:
        raise ValueError(
            f"{codes.name!r} holds codes of {codes.recipe['source']['dataset']!r}, not of {ds.name!r}"
        )
    square, count = 0.0, 0
    batches = ds.scan(columns=[field], batch_size=256)
    for batch, decoded in zip(batches, decode(codes, model, batch_size=256), strict=True):
        original = batch.column(0).to_numpy_ndarray().astype(np.float64)
        off = np.clip(np.rint(decoded.numpy()), 0, 255) - original
        square, count = square + float(np.square(off).sum()), count + off.size
    shape = codes.schema.field(CODE).type.shape
    bits = len(codes) * int(np.prod(shape)) * (8 if quantiser.dtype == "int8" else 16) / count
    return Rate(f"codes, {quantiser.dtype}", bits, _decibels(square / count))


def png(image: Pixels) -> bytes:
    """An image [C, H, W] as a PNG file."""
    return _png(image)


def _bits(files: Iterator[bytes], images: Pixels) -> float:
    return 8 * sum(map(len, files)) / images.size


def _png(image: Pixels) -> bytes:
    return _file(image, "PNG", optimize=True)


def _file(image: Pixels, format_: str, **options: Any) -> bytes:
    target = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(
        target, format_, **options
    )
    return target.getvalue()


def _pixels(data: bytes) -> Pixels:
    found = np.asarray(Image.open(io.BytesIO(data)))
    return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)
