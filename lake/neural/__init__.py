"""Learned compression: small codes instead of samples, stored in the lake, trained on and decoded from there.

models     autoencoders as plain modules, for images, sound, tables and time series
loss       `JointLoss`: reconstruct, classify, keep codes small
training   Lightning tasks and `fit`, fed by scans, resumed exactly; loaded when it is used
codes      how codes are stored: half precision, or 8 bits with scales
encoding   datasets to datasets of codes and back; `weights` models as datasets
rates      bits and decibels, beside PNG, JPEG and zstd
"""

import importlib
import typing

from lake.neural.codes import Quantiser
from lake.neural.encoding import decode, encode, model_of
from lake.neural.loss import JointLoss
from lake.neural.models import (
    AudioAutoencoder,
    Autoencoder,
    ImageAutoencoder,
    Output,
    TabularAutoencoder,
    TimeSeriesAutoencoder,
    head,
)
from lake.neural.rates import Rate, code_rate, file_rates, psnr
from lake.neural.weights import load, save

if typing.TYPE_CHECKING:
    from lake.neural.training import AutoencoderTask, ClassifierTask, fit

__all__ = [
    "AudioAutoencoder",
    "Autoencoder",
    "AutoencoderTask",
    "ClassifierTask",
    "ImageAutoencoder",
    "JointLoss",
    "Output",
    "Quantiser",
    "Rate",
    "TabularAutoencoder",
    "TimeSeriesAutoencoder",
    "code_rate",
    "decode",
    "encode",
    "file_rates",
    "fit",
    "head",
    "load",
    "model_of",
    "psnr",
    "save",
]

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import Lightning, which takes seconds, when training begins."""
        if name in ("AutoencoderTask", "ClassifierTask", "fit"):
            return getattr(importlib.import_module("lake.neural.training"), name)
        raise AttributeError(f"module 'lake.neural' has no attribute {name!r}")
