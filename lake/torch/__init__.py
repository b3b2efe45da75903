"""Tensors for PyTorch: what of lake needs torch, and the only part that imports it.

loading        `loader`: batches of a scan or a pipeline for a rank of a training run, with its position
reading        what a loader iterates; `scans` and `pipes` are the two kinds
ranks          which share of the data this process takes
stream         a scan as tensors; `tensors` how columns become them
archive        archives as data sets
"""

from lake.torch.archive import ArchiveDataset
from lake.torch.loading import Loader, loader
from lake.torch.stream import TensorStream
from lake.torch.tensors import Form, Tensors

__all__ = ["ArchiveDataset", "Form", "Loader", "TensorStream", "Tensors", "loader"]
