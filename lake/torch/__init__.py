"""Tensors for PyTorch: what of lake needs torch, and the only part that imports it."""

from lake.torch.archive import ArchiveDataset
from lake.torch.stream import TensorStream
from lake.torch.tensors import Form, Tensors

__all__ = ["ArchiveDataset", "Form", "TensorStream", "Tensors"]
