"""Real data that was held out: what codes keep of it, what can be learned from them, what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lake
from benchmarks import neural as benchmark
from benchmarks import real

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "neural.md"
FIGURES = ROOT / "benchmarks" / "results" / "neural.json"
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # Lightning's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def lk(tmp_path: Path) -> lake.Lake:
    return lake.open(tmp_path / "lake", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["sound", "table", "weather"])
def test_decoded_codes_have_less_than_half_the_error_of_the_mean(name: str, lk: lake.Lake) -> None:
    """Of recorded sound, measurements and weather; of images below."""
    figures, _, _ = benchmark.study(lk, name, benchmark.QUICK[name])

    assert figures["error"] <= figures["of_mean"] / 2


@pytest.mark.parametrize("name", ["crops of photographs", "digits"])
def test_codes_of_images_are_small_and_teach_as_pixels_do(name: str, lk: lake.Lake) -> None:
    """64 numbers: within five points of pixels, half the error of the mean; a column 20 times smaller than PNG."""
    figures, made, model = benchmark.study(lk, name.replace(" ", "-"), benchmark.QUICK[name])
    read = benchmark.reading(made, model)

    assert figures["latent"] == 64
    assert figures["error"] <= figures["of_mean"] / 2
    assert read["codes"] >= read["pixels"] - 0.05
    assert read["pixels"] > 2 / read["classes"]
    if name == "crops of photographs":
        column = benchmark.column_bytes(lk, made)
        assert column["png"] >= 20 * column["int8"]


def test_held_out_samples_are_in_nothing_that_is_trained_on() -> None:
    """Not one crop, digit, row, stretch or window is in both parts."""
    for split in (real.crops(stride=16), real.digits(), real.table(), real.sound(), real.weather()):
        train, test = ({part.tobytes() for part in of} for of in (split.train, split.test))
        assert len(train & test) <= len(test) * 0.01  # the same pixels of black sky
        assert len(split.train) == len(split.train_labels) > 300
        assert len(split.test) == len(split.test_labels) > 150
        assert set(np.unique(split.train_labels)) == set(np.unique(split.test_labels))


def test_the_page_shows_what_was_measured() -> None:
    """docs/neural.md has the tables that the benchmark made of its figures."""
    kept: dict[str, Any] = json.loads(FIGURES.read_text("utf-8"))

    assert benchmark.page(kept["figures"]) in PAGE.read_text("utf-8")


def test_the_pixels_of_a_classifier_are_those_of_the_encoder(lk: lake.Lake) -> None:
    """Both learn from the same standardised numbers."""
    model = benchmark.neural.ImageAutoencoder(8, image_size=8)
    x = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    model.calibrate([x])

    assert torch.equal(benchmark.Pixels(model)(x), model.standard(x).flatten(1))
