"""To the device: tensors of items ahead of who uses them, through memory that is reused, beside the computation.

An item's tensors lie side by side in one of a few pinned slots, are copied by one transfer on a stream of their
own, and are cut apart on the device. A slot is written again after its copy's event; device memory belongs to
the caller, on whose stream it is recorded. Without CUDA the same path runs over ordinary memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from lake.torch.reading import Reading

AHEAD: Final = 2  # items on their way to the device, or there, beyond the one in use
_ALIGN: Final = 256  # bytes; what CUDA's own allocations are aligned to


class Route(Protocol):
    """How bytes get to a device."""

    def staging(self, size: int) -> torch.Tensor:
        """Host memory of so many bytes, to copy from."""

    def send(self, staged: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Device memory that will have these bytes, and the event of that; None where it has them."""

    def receive(self, sent: torch.Tensor, event: Any) -> None:
        """Have what the caller does next wait for the event, and the memory outlive what it does."""

    def wait(self, event: Any) -> None:
        """Wait until staged bytes may be written over."""


class CudaRoute:
    """Pinned memory, and a stream beside that of the computation."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def staging(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def send(self, staged: torch.Tensor) -> tuple[torch.Tensor, Any]:
        with torch.cuda.stream(self._stream):
            sent = torch.empty(staged.shape, dtype=torch.uint8, device=self._device)
            sent.copy_(staged, non_blocking=True)
            return sent, self._stream.record_event()

    def receive(self, sent: torch.Tensor, event: Any) -> None:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        sent.record_stream(current)

    def wait(self, event: Any) -> None:
        event.synchronize()


class PlainRoute:
    """One copy, done at once; to any device that torch can copy to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def staging(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def send(self, staged: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return staged.to(self._device, copy=True), None

    def receive(self, sent: torch.Tensor, event: Any) -> None:
        pass

    def wait(self, event: Any) -> None:
        pass


def route_to(device: torch.device) -> Route:
    """The best way to a device.

    Raises:
        ValueError: CUDA, where there is none.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device={str(device)!r}: torch finds no CUDA device here; device=None stays on the CPU"
        )
    return CudaRoute(device) if device.type == "cuda" else PlainRoute(device)


@dataclass(slots=True)
class _Slot:
    """Host memory, and the event after which it may be written."""

    memory: torch.Tensor
    event: Any = None


@dataclass(frozen=True, slots=True)
class Moved:
    """An item whose tensors are on the device, or will be after the event."""

    item: Any
    sent: torch.Tensor | None
    event: Any


class Mover:
    """Moves the tensors in dicts, tuples and lists to a device; everything else stays what it is."""

    def __init__(self, route: Route, slots: int = AHEAD + 1) -> None:
        self._route = route
        self._slots = deque(_Slot(torch.empty(0, dtype=torch.uint8)) for _ in range(slots))

    def begin(self, item: Any) -> Moved:
        """Have an item's tensors on their way."""
        places: list[tuple[torch.Tensor, int]] = []
        size = 0
        for tensor in _tensors(item):
            places.append((tensor, size))
            size += -(-tensor.nbytes // _ALIGN) * _ALIGN
        if not size:
            return Moved(item, None, None)
        slot = self._free(size)
        for tensor, at in places:
            room = slot.memory[at : at + tensor.nbytes]
            room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        sent, slot.event = self._route.send(slot.memory[:size])
        parts = iter([sent[at : at + t.nbytes].view(t.dtype).view(t.shape) for t, at in places])
        return Moved(_replaced(item, lambda _: next(parts)), sent, slot.event)

    def end(self, moved: Moved) -> Any:
        """The item, for whoever computes on the current stream."""
        if moved.sent is not None:
            self._route.receive(moved.sent, moved.event)
        return moved.item

    def _free(self, size: int) -> _Slot:
        """The slot that was sent longest ago, large enough, when its bytes are gone."""
        slot = self._slots[0]
        self._slots.rotate(-1)
        if slot.event is not None:
            self._route.wait(slot.event)
        if len(slot.memory) < size:
            slot.memory = self._route.staging(size + size // 8)
        return slot


def _is_moved(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_quantized
        and value.nbytes > 0
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if _is_moved(value):
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _replaced(value: Any, moved: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return moved(value) if _is_moved(value) else value
    if isinstance(value, Mapping):
        return {key: _replaced(part, moved) for key, part in value.items()}
    if isinstance(value, list):
        return [_replaced(part, moved) for part in value]
    if isinstance(value, tuple):
        parts = [_replaced(part, moved) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


class MovedReading:
    """An epoch whose items go to a device ahead of who asks; its position is that of the last one handed out."""

    def __init__(self, reading: Reading, mover: Mover) -> None:
        self._reading, self._mover = reading, mover
        self._coming: deque[tuple[Moved, Any]] = deque()
        self._mark = reading.mark()
        self._stop: Exception | None = None  # the end, or an error, after what is coming

    def next(self) -> Any:
        while self._stop is None and len(self._coming) <= AHEAD:
            try:
                item = self._reading.next()
            except Exception as error:
                self._stop = error
            else:
                self._coming.append((self._mover.begin(item), self._reading.mark()))
        if not self._coming:
            assert self._stop is not None
            raise self._stop
        moved, self._mark = self._coming.popleft()
        return self._mover.end(moved)

    def mark(self) -> Any:
        return self._mark

    def state(self, mark: Any) -> dict[str, Any]:
        return self._reading.state(mark)

    def close(self) -> None:
        self._coming.clear()
        self._stop = self._stop or StopIteration()
        self._reading.close()


class _Foreign:
    """What somebody else iterates, as an epoch."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable, self._items = iterable, iter(iterable)

    def next(self) -> Any:
        return next(self._items)

    def mark(self) -> Any:
        ask = getattr(self._iterable, "position", None) or getattr(self._iterable, "state_dict", None)
        return None if ask is None else ask()

    def state(self, mark: Any) -> dict[str, Any]:
        if mark is None:
            raise RuntimeError(f"{type(self._iterable).__name__} has no state_dict() to tell its position")
        return dict(mark)

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


class DeviceFeed:
    """Items of any iterable with their tensors on a device, two items ahead of who uses them.

    `state_dict()` is the iterable's, where that has one, after the last item handed out: ask this object, since
    the iterable is ahead. Pipelines, scans as tensors and loaders of lake then name this one when asked.
    """

    def __init__(self, iterable: Iterable[Any], device: Any) -> None:
        if not hasattr(iterable, "__iter__"):
            raise TypeError(
                f"DeviceFeed takes an iterable of items with tensors, not {type(iterable).__name__}"
            )
        self.device = torch.device(device)
        self.iterable = _taken_over(iterable, self)
        self._mover = Mover(route_to(self.device))
        self._reading: MovedReading | None = None

    def __repr__(self) -> str:
        return f"DeviceFeed({self.iterable!r}, {str(self.device)!r})"

    def __len__(self) -> int:
        return len(self.iterable)

    def __iter__(self) -> Iterator[Any]:
        self._close()
        self._reading = MovedReading(_Foreign(self.iterable), self._mover)
        return MovedItems(self._reading)

    def state_dict(self) -> dict[str, Any]:
        """The iterable's position after the last item handed out."""
        if self._reading is not None:
            return self._reading.state(self._reading.mark())
        ask = getattr(self.iterable, "position", None) or self.iterable.state_dict
        return dict(ask())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the iterable go on where `state` says; an iteration in progress ends."""
        self._close()
        go_to = getattr(self.iterable, "go_to", None) or self.iterable.load_state_dict
        go_to(state)

    def set_epoch(self, epoch: int) -> None:
        """Have the iterable's next iteration be this epoch."""
        self.iterable.set_epoch(epoch)

    def _close(self) -> None:
        if self._reading is not None:
            self._reading.close()
        self._reading = None


def _taken_over(iterable: Any, outer: DeviceFeed) -> Any:
    """What to iterate in place of an object of lake, which then names `outer` when it is asked for its position."""
    if not hasattr(iterable, "hand_over"):
        return iterable
    inner = iterable.copied() if hasattr(iterable, "copied") else iterable
    iterable.hand_over(outer)
    return inner


class MovedItems:
    """The items of a reading. Who drops them ends it."""

    def __init__(self, reading: MovedReading) -> None:
        self._reading = reading

    def __iter__(self) -> MovedItems:
        return self

    def __next__(self) -> Any:
        return self._reading.next()

    def close(self) -> None:
        """Hand nothing out any more."""
        self._reading.close()

    def __del__(self) -> None:
        self._reading.close()
