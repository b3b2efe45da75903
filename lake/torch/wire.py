"""Items as bytes, and back: arrays and tensors lie beside the rest, so that each is copied once on each side."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import cloudpickle
import numpy as np

from lake.torch.ring import Octets, Part

_ASIDE: Final = 2048  # bytes from which an array is a part of its own


class _Pickler(pickle.Pickler):
    """Tensors in ordinary memory as their bytes, whatever sharing torch itself would do."""

    def reducer_override(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or not _is_plain(value, torch):
            return NotImplemented
        octets = value.contiguous().reshape(-1).view(torch.uint8).numpy() if value.numel() else b""
        return _tensor, (pickle.PickleBuffer(octets), str(value.dtype)[6:], tuple(value.shape))


def _is_plain(tensor: Any, torch: Any) -> bool:
    return bool(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def _tensor(data: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if not len(data):
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(shape)


def dump(value: Any) -> list[Part]:
    """A value as parts: what it is, then the bytes of its arrays and tensors."""
    buffers: list[Part] = []

    def aside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _ASIDE:
            return True
        buffers.append([np.frombuffer(raw, np.uint8)])
        return False

    written = _Pieces()
    try:
        _Pickler(written, 5, buffer_callback=aside).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):  # lambdas, classes of __main__
        buffers.clear()
        written.pieces = [np.frombuffer(cloudpickle.dumps(value, 5, buffer_callback=aside), np.uint8)]
    return [written.pieces, *buffers]


class _Pieces:
    """A file that keeps what is written as it comes: pickle writes pieces of 64 KiB, and long bytes as they are."""

    def __init__(self) -> None:
        self.pieces: list[Octets] = []

    def write(self, data: Any) -> None:
        self.pieces.append(np.frombuffer(data, np.uint8))


def load(parts: Sequence[Octets]) -> Any:
    """The value. Its arrays are over the parts."""
    return pickle.loads(parts[0].data, buffers=parts[1:])


class RemoteTraceback(Exception):
    """Where an error was raised in another process: the cause of the error that is raised in this one."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def dump_error(error: BaseException, where: str) -> list[Part]:
    """An error with its traceback as text; as a RuntimeError if it does not survive pickling."""
    text = "".join(traceback.format_exception(error))
    made: BaseException = error
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        made = RuntimeError(f"{type(error).__name__}: {error}")
    return dump((made.with_traceback(None), f"\n{where}:\n{text}"))


def load_error(parts: Sequence[Octets]) -> BaseException:
    """The error, caused by the traceback that it had."""
    error, text = load(parts)
    error.__cause__ = RemoteTraceback(text)
    return error  # type: ignore[no-any-return]
