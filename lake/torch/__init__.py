"""Tensors for PyTorch: what of lake needs torch, and the only part that imports it.

loading        `loader`: batches of a scan or a pipeline for a rank of a training run, with its position
reading        what a loader iterates; `scans` and `pipes` are the two kinds
feed           the processes in which functions run, `making` what they make; `ring` and `wire` how it gets here
device         tensors to the device, ahead of who uses them: `DeviceFeed`
dataset        `as_iterable_dataset`, for loaders that are not lake's
ranks          which share of the data this process takes
stream         a scan as tensors; `tensors` how columns become them
archive        archives as data sets
"""

from lake.torch.archive import ArchiveDataset
from lake.torch.dataset import LakeIterable, as_iterable_dataset
from lake.torch.device import DeviceFeed
from lake.torch.loading import Loader, loader
from lake.torch.stream import TensorStream
from lake.torch.tensors import Form, Tensors

__all__ = [
    "ArchiveDataset",
    "DeviceFeed",
    "Form",
    "LakeIterable",
    "Loader",
    "TensorStream",
    "Tensors",
    "as_iterable_dataset",
    "loader",
]
