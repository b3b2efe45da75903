"""Autoencoders as plain modules: samples to small codes and back, and classes from codes alone.

Every model keeps the mean and scale of its data (`calibrate`), so that it takes values in their own units and gives
them back in those. There is neither dropout nor anything else that depends on the batch: `encode` is a function of
each sample. The same call gives the same bits; among other samples, or in another number, a sample's code may
differ by the rounding of single precision, some 1e-6 of its size, since matrix products are then summed in another
order.

| model | takes | a code | gives |
|---|---|---|---|
| `ImageAutoencoder` | [B, C, H, W] | [B, latent_dim] | [B, C, H, W] |
| `AudioAutoencoder` | [B, 1, T] | [B, latent_dim] | [B, 1, T] |
| `TabularAutoencoder` | [B, D] | [B, latent_dim] | [B, D] |
| `TimeSeriesAutoencoder` | [B, L, F] | [B, latent_dim] | [B, L, F] |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lake.asked import whole


class Output(NamedTuple):
    """What a model makes of samples."""

    reconstruction: Tensor  # [B, *shape], in the samples' units
    code: Tensor  # [B, latent_dim]
    logits: Tensor | None  # [B, num_classes], without classes None


class Autoencoder(nn.Module):  # type: ignore[misc]  # torch's types are not read
    """An encoder, a decoder and, where `num_classes` is given, a classifier of codes.

    `encoder` and `decoder` work on samples with the calibrated mean taken away and divided by the scale; `encode` and
    `decode` on samples in their own units, of any number type.
    """

    kind: ClassVar[str]
    feature_axis: ClassVar[int]  # of a batch: mean and scale are per index along it
    shift: Tensor
    spread: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        *,
        shape: tuple[int, ...],
        latent_dim: int,
        num_classes: int | None,
        arguments: dict[str, Any],
    ) -> None:
        super().__init__()
        if num_classes is not None and whole("num_classes", num_classes) < 1:
            raise ValueError(f"num_classes={num_classes}: at least 1, or None")
        self.encoder, self.decoder = encoder, decoder
        self.classifier = None if num_classes is None else head(latent_dim, num_classes)
        self.shape, self.latent_dim = shape, latent_dim
        self.arguments = arguments
        sizes = [1] * (len(shape) + 1)
        sizes[self.feature_axis] = (1, *shape)[self.feature_axis]
        self.register_buffer("shift", torch.zeros(sizes))
        self.register_buffer("spread", torch.ones(sizes))

    def calibrate(self, batches: Iterable[Tensor]) -> None:
        """Take mean and standard deviation of each feature from batches [B, *shape] of samples, in one pass.

        Raises:
            ValueError: no samples, NaN or infinities among them, or values beyond single precision.
        """
        axes = [axis for axis in range(len(self.shape) + 1) if axis != self.feature_axis]
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for number, batch in enumerate(batches):
            x = self._checked(batch).double()
            if not x.isfinite().all():
                raise ValueError(
                    f"batch {number:,} to calibrate with has NaN or infinities: fill or leave out such samples first"
                )
            count += x.numel() // x.shape[self.feature_axis]
            total = total + x.sum(axes, keepdim=True)
            squares = squares + x.square().sum(axes, keepdim=True)
        if not count:
            raise ValueError("no samples to calibrate with")
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        if not (mean.float().isfinite().all() and deviation.float().isfinite().all()):
            raise ValueError("samples to calibrate with are beyond single precision: scale them down first")
        self.shift.copy_(mean)
        self.spread.copy_(torch.where(deviation > 0, deviation, torch.ones_like(deviation)))

    def standard(self, samples: Tensor) -> Tensor:
        """Samples as the encoder takes them."""
        standardised: Tensor = (self._checked(samples).float() - self.shift) / self.spread
        return standardised

    def encode(self, samples: Tensor) -> Tensor:
        """The codes [B, latent_dim] of samples [B, *shape]."""
        code: Tensor = self.encoder(self.standard(samples))
        return code

    def decode(self, code: Tensor) -> Tensor:
        """The samples [B, *shape] of codes [B, latent_dim], in the samples' units."""
        samples: Tensor = self.decoder(self._coded(code)) * self.spread + self.shift
        return samples

    def classify(self, code: Tensor) -> Tensor:
        """Logits [B, num_classes] of codes [B, latent_dim].

        Raises:
            ValueError: the model was made without classes.
        """
        if self.classifier is None:
            raise ValueError(f"{type(self).__name__} was made without num_classes")
        logits: Tensor = self.classifier(self._coded(code))
        return logits

    def forward(self, samples: Tensor) -> Output:
        """Code, reconstruction and, with classes, logits of samples [B, *shape]."""
        code = self.encode(samples)
        return Output(self.decode(code), code, None if self.classifier is None else self.classify(code))

    def ratio(self, code: torch.dtype = torch.float32, values: torch.dtype = torch.float32) -> float:
        """How many times smaller codes are than samples, in bytes, stored as these types."""
        return float(prod(self.shape) * values.itemsize / (self.latent_dim * code.itemsize))

    def _checked(self, samples: Tensor) -> Tensor:
        wanted = f"{type(self).__name__} takes [B, {', '.join(map(str, self.shape))}]"
        if not isinstance(samples, Tensor) or samples.is_complex():
            raise TypeError(f"{wanted}, a tensor of real numbers, not {_what(samples)}")
        if samples.shape[1:] != self.shape:
            raise ValueError(f"{wanted}, not {list(samples.shape)}")
        return samples

    def _coded(self, code: Tensor) -> Tensor:
        wanted = f"codes of this {type(self).__name__} are [B, {self.latent_dim}]"
        if not isinstance(code, Tensor) or not code.is_floating_point():
            raise TypeError(
                f"{wanted}, a tensor of floats, not {_what(code)}: Quantiser.values makes them of stored numbers"
            )
        if code.shape[1:] != (self.latent_dim,):
            raise ValueError(f"{wanted}, not {list(code.shape)}")
        return code


class ImageAutoencoder(Autoencoder):
    """Images [B, C, H, W], of which H and W are divisible by 8; 3x32x32 to 64 numbers by default."""

    kind, feature_axis = "image", 1

    def __init__(
        self,
        latent_dim: int = 64,
        num_classes: int | None = None,
        in_channels: int = 3,
        image_size: int | tuple[int, int] = 32,
    ) -> None:
        in_channels = whole("in_channels", in_channels, least=1)
        height, width = _sides(image_size)
        least = (128, height // 8, width // 8)
        encoder = nn.Sequential(
            *_down(nn.Conv2d(in_channels, 32, 3, 2, 1)),
            *_down(nn.Conv2d(32, 64, 3, 2, 1)),
            *_down(nn.Conv2d(64, 128, 3, 2, 1)),
            nn.Flatten(),
            _to_code(prod(least), latent_dim),
        )
        decoder = nn.Sequential(
            nn.Linear(latent_dim, prod(least)),
            nn.Unflatten(1, least),
            nn.SiLU(),
            *_down(nn.ConvTranspose2d(128, 64, 4, 2, 1)),
            *_down(nn.ConvTranspose2d(64, 32, 4, 2, 1)),
            nn.ConvTranspose2d(32, in_channels, 4, 2, 1),
        )
        super().__init__(
            encoder,
            decoder,
            shape=(in_channels, height, width),
            latent_dim=latent_dim,
            num_classes=num_classes,
            arguments={
                "latent_dim": latent_dim,
                "num_classes": num_classes,
                "in_channels": in_channels,
                "image_size": [height, width],
            },
        )


class AudioAutoencoder(Autoencoder):
    """Stretches of one channel of sound [B, 1, T], T of any length."""

    kind, feature_axis = "audio", 1

    def __init__(self, latent_dim: int = 64, samples: int = 16000, num_classes: int | None = None) -> None:
        samples = whole("samples", samples, least=1)
        super().__init__(
            *_along(1, samples, latent_dim, width=16, levels=3, stride=4),
            shape=(1, samples),
            latent_dim=latent_dim,
            num_classes=num_classes,
            arguments={"latent_dim": latent_dim, "samples": samples, "num_classes": num_classes},
        )


class TabularAutoencoder(Autoencoder):
    """Rows of numbers [B, D]; each column has a mean and scale of its own."""

    kind, feature_axis = "tabular", 1

    def __init__(self, input_dim: int, latent_dim: int = 64, num_classes: int | None = None) -> None:
        input_dim = whole("input_dim", input_dim, least=1)
        hidden = max(64, 2 * input_dim)
        super().__init__(
            nn.Sequential(nn.Linear(input_dim, hidden), nn.SiLU(), _to_code(hidden, latent_dim)),
            nn.Sequential(nn.Linear(latent_dim, hidden), nn.SiLU(), nn.Linear(hidden, input_dim)),
            shape=(input_dim,),
            latent_dim=latent_dim,
            num_classes=num_classes,
            arguments={"input_dim": input_dim, "latent_dim": latent_dim, "num_classes": num_classes},
        )


class TimeSeriesAutoencoder(Autoencoder):
    """Windows of several series [B, L, F]; each series has a mean and scale of its own."""

    kind, feature_axis = "time series", 2

    def __init__(
        self, input_features: int, latent_dim: int = 64, length: int = 50, num_classes: int | None = None
    ) -> None:
        input_features = whole("input_features", input_features, least=1)
        length = whole("length", length, least=1)
        encoder, decoder = _along(input_features, length, latent_dim, width=32, levels=2, stride=2)
        super().__init__(
            nn.Sequential(_Transpose(), encoder),
            nn.Sequential(decoder, _Transpose()),
            shape=(length, input_features),
            latent_dim=latent_dim,
            num_classes=num_classes,
            arguments={
                "input_features": input_features,
                "latent_dim": latent_dim,
                "length": length,
                "num_classes": num_classes,
            },
        )


KINDS: dict[str, Callable[..., Autoencoder]] = {
    model.kind: model
    for model in (ImageAutoencoder, AudioAutoencoder, TabularAutoencoder, TimeSeriesAutoencoder)
}


def head(inputs: int, num_classes: int) -> nn.Module:
    """A small classifier of vectors [B, inputs]: logits [B, num_classes]."""
    inputs, num_classes = whole("inputs", inputs, least=1), whole("num_classes", num_classes, least=1)
    return nn.Sequential(nn.Linear(inputs, 128), nn.SiLU(), nn.Linear(128, num_classes))


# --- inside -------------------------------------------------------------------------------------


def _what(value: Any) -> str:
    return f"one of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of images, of one number for both or of two."""
    sides = [whole("image_size", side) for side in np.atleast_1d(image_size).tolist()]
    if len(sides) not in (1, 2) or any(side < 8 or side % 8 for side in sides):
        raise ValueError(f"image_size={image_size}: height and width are multiples of 8")
    return sides[0], sides[-1]


def _to_code(inputs: int, latent_dim: int) -> nn.Module:
    """The last layer of an encoder."""
    if whole("latent_dim", latent_dim) < 1:
        raise ValueError(f"latent_dim={latent_dim}: a code has at least 1 number")
    return nn.Linear(inputs, latent_dim)


def _down(convolution: Any) -> tuple[nn.Module, ...]:
    """A convolution with what follows it; groups are normalised in each sample by itself."""
    return convolution, nn.GroupNorm(8, convolution.out_channels), nn.SiLU()


def _along(
    features: int, length: int, latent_dim: int, *, width: int, levels: int, stride: int
) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder of [B, features, length] by convolutions along the length."""
    whole = -(-length // stride**levels) * stride**levels  # padded at the end, and cut again
    widths = [features, *(width * 2**level for level in range(levels))]
    least = (widths[-1], whole // stride**levels)
    kernel, side = 2 * stride, stride // 2
    down = [
        part
        for before, after in pairwise(widths)
        for part in _down(nn.Conv1d(before, after, kernel, stride, side))
    ]
    up: list[nn.Module] = []
    for before, after in zip(widths[:0:-1], widths[-2::-1], strict=True):
        up += [nn.SiLU(), nn.ConvTranspose1d(before, after, kernel, stride, side)]
    encoder = nn.Sequential(
        nn.ZeroPad1d((0, whole - length)), *down, nn.Flatten(), _to_code(prod(least), latent_dim)
    )
    decoder = nn.Sequential(nn.Linear(latent_dim, prod(least)), nn.Unflatten(1, least), *up, _Cut(length))
    return encoder, decoder


class _Cut(nn.Module):  # type: ignore[misc]
    """The first so many along the last axis."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : self.length]


class _Transpose(nn.Module):  # type: ignore[misc]
    """[B, L, F] as [B, F, L], and back."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)
