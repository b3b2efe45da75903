"""The models: shapes, sizes in bytes, codes that depend on nothing but the sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lake import neural
from lake.neural import Autoencoder, JointLoss

MODELS: dict[str, Callable[[], Autoencoder]] = {
    "image": lambda: neural.ImageAutoencoder(num_classes=5),
    "grey image": lambda: neural.ImageAutoencoder(16, 10, in_channels=1, image_size=(8, 24)),
    "large image": lambda: neural.ImageAutoencoder(32, image_size=96),
    "audio": lambda: neural.AudioAutoencoder(num_classes=3),
    "short audio": lambda: neural.AudioAutoencoder(8, samples=101),
    "table": lambda: neural.TabularAutoencoder(20, num_classes=2),
    "wide table": lambda: neural.TabularAutoencoder(300, 4),
    "series": lambda: neural.TimeSeriesAutoencoder(8, num_classes=2),
    "short series": lambda: neural.TimeSeriesAutoencoder(1, 3, length=7),
}


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Autoencoder:
    """Each model in turn, in eval mode."""
    return MODELS[request.param]().eval()


def samples(model: Autoencoder, count: int) -> torch.Tensor:
    """Noise of the model's shape, far from standard."""
    return 50 + 20 * torch.randn(count, *model.shape)


def test_shapes_are_as_documented(model: Autoencoder) -> None:
    """[B, *shape] to [B, latent] and back; logits where there are classes, else an error that says so."""
    x = samples(model, 3)

    out = model(x)

    assert out.code.shape == model.encode(x).shape == (3, model.latent_dim)
    assert out.reconstruction.shape == model.decode(out.code).shape == x.shape
    if model.classifier is None:
        assert out.logits is None
        with pytest.raises(ValueError, match="without num_classes"):
            model.classify(out.code)
    else:
        assert out.logits is not None
        assert out.logits.shape == (3, model.arguments["num_classes"])


def test_a_decoder_has_at_most_twice_the_parameters_of_its_encoder(model: Autoencoder) -> None:
    """So that what was saved in codes is not spent in weights."""
    encoder, decoder = (
        sum(parameter.numel() for parameter in part.parameters()) for part in (model.encoder, model.decoder)
    )

    assert decoder <= 2 * encoder


@torch.inference_mode()
def test_a_code_depends_on_its_sample_alone(model: Autoencoder) -> None:
    """Repeated: the same bits. Alone, in other company, at another place: the same to single precision."""
    x = samples(model, 33)
    model.calibrate([x])

    codes = model.encode(x)

    assert torch.equal(codes, model.encode(x))
    size = float(codes.abs().max())
    alone = torch.cat([model.encode(one) for one in x.split(1)])
    moved = model.encode(torch.cat([samples(model, 4), x.flip(0)]))[4:].flip(0)
    for other in (alone, moved):
        assert torch.allclose(codes, other, rtol=0, atol=1e-5 * size)


def test_ratios_are_of_bytes() -> None:
    """3x32x32 pixels to 64 numbers: 48 in bytes as int8, 24 as float16, 12 as float32."""
    model = neural.ImageAutoencoder()

    assert model.ratio(torch.int8, torch.uint8) == 48
    assert model.ratio(torch.float16, torch.uint8) == 24
    assert model.ratio(torch.float32, torch.uint8) == 12


def test_calibration_is_of_the_whole_data(model: Autoencoder) -> None:
    """In batches as at once: mean 0 and deviation 1 of each feature, constant ones left alone."""
    x = samples(model, 40)
    model.calibrate(x.split(7))

    standard = model.standard(x).transpose(0, model.feature_axis).flatten(1)

    assert torch.allclose(standard.mean(1), torch.zeros(len(standard)), atol=1e-4)
    assert torch.allclose(standard.std(1, correction=0), torch.ones(len(standard)), atol=1e-3)
    model.calibrate([torch.full_like(x, 3)])
    assert torch.equal(model.standard(torch.full_like(x, 3)), torch.zeros_like(x))
    with pytest.raises(ValueError, match="no samples"):
        model.calibrate([])


def test_what_does_not_fit_is_named() -> None:
    """Sizes, samples, weights of terms."""
    with pytest.raises(ValueError, match="multiples of 8"):
        neural.ImageAutoencoder(image_size=30)
    with pytest.raises(ValueError, match="latent_dim=0"):
        neural.TabularAutoencoder(3, 0)
    with pytest.raises(ValueError, match=r"takes \[B, 3, 32, 32\], not \[2, 3, 16, 16\]"):
        neural.ImageAutoencoder()(torch.zeros(2, 3, 16, 16))
    for weight in (-1, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match="not negative"):
            JointLoss(task=weight)


NUMBERS: dict[str, Callable[[Any], object]] = {
    "latent_dim": lambda n: neural.TabularAutoencoder(4, n),
    "num_classes": lambda n: neural.TabularAutoencoder(4, 2, n),
    "input_dim": neural.TabularAutoencoder,
    "in_channels": lambda n: neural.ImageAutoencoder(in_channels=n),
    "image_size": lambda n: neural.ImageAutoencoder(image_size=n),
    "samples": lambda n: neural.AudioAutoencoder(samples=n),
    "input_features": neural.TimeSeriesAutoencoder,
    "length": lambda n: neural.TimeSeriesAutoencoder(1, length=n),
    "inputs": lambda n: neural.head(n, 2),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_sizes_that_cannot_be_are_named(name: str) -> None:
    """Whatever torch would make of them."""
    for value in ("2", 1.5, True):
        with pytest.raises(TypeError, match=f"{name} is a whole number, not {value!r}"):
            NUMBERS[name](value)
    for value in (0, -1):
        with pytest.raises(ValueError, match=name):
            NUMBERS[name](value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_what_cannot_be_calibrated_with_is_refused(bad: float) -> None:
    """Before every code is NaN; the model stays as it was."""
    model = neural.TabularAutoencoder(3, 2)
    good, batch = torch.ones(4, 3, dtype=torch.double), torch.ones(4, 3, dtype=torch.double)
    batch[2, 1] = bad

    with pytest.raises(ValueError, match=r"batch 1 to calibrate with has|beyond single precision"):
        model.calibrate([good, batch])

    assert torch.equal(model.shift, torch.zeros(1, 3))
    assert torch.equal(model.spread, torch.ones(1, 3))


@pytest.mark.parametrize("bad", [[1.0], None, np.ones((2, 4)), torch.ones(2, 4, dtype=torch.complex64)])
def test_samples_and_codes_that_are_no_tensors_of_numbers_are_refused(bad: Any) -> None:
    """By the model, which says what it takes."""
    model = neural.TabularAutoencoder(4, 2, 3)
    for ask in (model, model.encode, lambda x: model.calibrate([x])):
        with pytest.raises(TypeError, match=r"TabularAutoencoder takes \[B, 4\], a tensor of real numbers"):
            ask(bad)
    for ask in (model.decode, model.classify):
        with pytest.raises(TypeError, match=r"are \[B, 2\], a tensor of floats.*Quantiser.values"):
            ask(bad)
        with pytest.raises(TypeError, match=r"Quantiser.values"):
            ask(torch.ones(1, 2, dtype=torch.int8))  # as they are stored
        with pytest.raises(ValueError, match=r"are \[B, 2\], not \[1, 4\]"):
            ask(torch.ones(1, 4))


def test_the_joint_loss_is_the_weighted_sum_of_its_terms() -> None:
    """Each term is returned; without labels, or with weight 0, there is no task."""
    model = neural.TabularAutoencoder(6, 3, 4)
    x, labels = torch.randn(9, 6), torch.arange(9) % 4
    out = model(x)
    loss = JointLoss(reconstruction=2.0, task=0.5, code=0.25)

    terms = loss(x, out.reconstruction, out.code, out.logits, labels)

    assert sorted(terms) == ["code", "loss", "reconstruction", "task"]
    whole = 2 * terms["reconstruction"] + 0.5 * terms["task"] + 0.25 * terms["code"]
    assert torch.allclose(terms["loss"], whole)
    assert torch.allclose(terms["reconstruction"], (x - out.reconstruction).square().mean())
    assert "task" not in loss(x, out.reconstruction, out.code)
    assert "task" not in JointLoss(task=0)(x, out.reconstruction, out.code, out.logits, labels)
