"""Codes as they are stored: half precision, or 8 bits with a scale for each dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

if TYPE_CHECKING:
    from lake.dataset import Dataset

CodeType = Literal["float16", "int8"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Quantiser:
    """Codes [n, k] to stored numbers and back. `scale` [k], of int8: what one step of each dimension is worth."""

    dtype: CodeType
    scale: tuple[float, ...] = ()

    @classmethod
    def fitted(cls, dtype: CodeType, largest: Floats) -> Quantiser:
        """That for codes whose numbers are at most `largest` [k] in size."""
        if dtype not in ("float16", "int8"):
            raise ValueError(f"codes are stored as 'float16' or 'int8', not {dtype!r}")
        if dtype == "float16":
            return cls(dtype)
        steps = np.where(largest > 0, largest / np.float32(127), np.float32(1))
        return cls(dtype, tuple(steps.astype(np.float32).tolist()))

    @classmethod
    def of(cls, dataset: Dataset) -> Quantiser:
        """That of a dataset of codes.

        Raises:
            ValueError: `encode` did not make it.
        """
        try:
            stored = dataset.meta["codes"]
            return cls(stored["dtype"], tuple(stored["scale"]))
        except (KeyError, TypeError):
            raise ValueError(
                f"{dataset.name!r} holds no codes: lake.neural.encode makes such datasets"
            ) from None

    def meta(self) -> dict[str, Any]:
        """What the dataset keeps of it."""
        return {"dtype": self.dtype, "scale": list(self.scale)}

    def stored(self, codes: Floats) -> pa.Array:
        """Codes as a column of tensors [k].

        Raises:
            OverflowError: a number too large for half precision.
        """
        if self.dtype == "int8":
            numbers: Any = np.clip(np.rint(codes / np.asarray(self.scale, np.float32)), -127, 127).astype(
                np.int8
            )
        else:
            if np.abs(codes).max(initial=0) > np.finfo(np.float16).max:
                raise OverflowError("a code is beyond 65,504, where half precision ends: store it as int8")
            numbers = codes.astype(np.float16)
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(numbers))

    def values(self, stored: Tensor) -> Tensor:
        """What stored numbers [n, k] stand for, in single precision."""
        codes = stored.float()
        return codes if self.dtype == "float16" else codes * torch.tensor(self.scale, device=codes.device)
