"""Put operators on codes to the test: does decode(encode(x) (+) encode(y)) give x + y, how often, how nearly?

Run-end, dictionary and linear codes pass. Streams of general-purpose compressors do not, whichever of the
operators is tried that work on streams without expanding them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from lake.algebra import columns

Guarantee = Literal["exact", "bounded", "impossible"]
Values = npt.NDArray[Any]


class Codec(Protocol):
    """Arrays to codes and back."""

    name: str

    def encode(self, values: Values, /) -> Any:
        """The code of an array."""

    def decode(self, code: Any, /) -> Values:
        """The array of a code; any exception if it is none."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operation on two arrays, and what is to do the same to their codes."""

    name: str
    plain: Callable[[Values, Values], Values]
    coded: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Homomorphism:
    """How an operator on codes fared."""

    codec: str
    operator: str
    samples: int
    successes: int  # equal, bit for bit
    max_error: float  # of what was decoded, the largest difference; infinite where nothing could be, or of another size
    breaks_at: str | None  # the first sample that failed: its number, the stage and why

    @property
    def rate(self) -> float:
        """The share of samples that succeeded."""
        return self.successes / self.samples


def check_homomorphism(codec: Codec, op: Operator, samples: Iterable[tuple[Values, Values]]) -> Homomorphism:
    """Whether `op.coded` does to codes what `op.plain` does to arrays, on pairs of arrays.

    Raises:
        ValueError: no samples.
    """
    outcomes = [_outcome(codec, op, x, y) for x, y in samples]
    if not outcomes:
        raise ValueError("no samples, no answer")
    broken = [f"sample {i}: {why}" for i, (_, why) in enumerate(outcomes) if why is not None]
    return Homomorphism(
        codec=codec.name,
        operator=op.name,
        samples=len(outcomes),
        successes=len(outcomes) - len(broken),
        max_error=max(error for error, _ in outcomes),
        breaks_at=broken[0] if broken else None,
    )


def entropy(data: bytes | bytearray | memoryview) -> float:
    """The entropy of the distribution of the byte values, in bits per byte: 0 of one value, 8 of all alike."""
    values = np.frombuffer(data, np.uint8)
    counts = np.bincount(values, minlength=256)
    shares = counts[counts > 0] / max(1, len(values))
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def guarantees(codec: str) -> dict[str, Guarantee]:
    """What each operator promises for a codec.

    That is "run_end", "dictionary", "pca", "random_projection", "dct", "deflate" or "zstd".

    Raises:
        ValueError: another codec.
    """
    if codec not in _GUARANTEES:
        raise ValueError(f"no codec {codec!r}: {', '.join(_GUARANTEES)}")
    return dict(_GUARANTEES[codec])


# --- codecs -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stream:
    """The bytes of an array through a compressor of bytes; decoding knows the type, as a reader of a column does."""

    name: str
    compress: Callable[[bytes], bytes]
    expand: Callable[[bytes], bytes]
    dtype: str = "u1"

    def encode(self, values: Values, /) -> bytes:
        """The compressed bytes."""
        return self.compress(np.ascontiguousarray(values, self.dtype).tobytes())

    def decode(self, code: bytes, /) -> Values:
        """The array of what they expand to."""
        return np.frombuffer(self.expand(code), self.dtype)


@dataclass(frozen=True, slots=True)
class Arrow:
    """A lossless encoding of Arrow's."""

    name: str
    into: Callable[[pa.Array], pa.Array]

    def encode(self, values: Values, /) -> pa.Array:
        """The encoded array."""
        return self.into(pa.array(values))

    def decode(self, code: pa.Array, /) -> Values:
        """Its values."""
        plain = pc.run_end_decode(code) if self.name == "run_end" else code.dictionary_decode()
        return np.asarray(plain)


deflate: Final = Stream("deflate", zlib.compress, zlib.decompress)
zstd: Final = Stream(
    "zstd", zstandard.ZstdCompressor().compress, lambda data: zstandard.ZstdDecompressor().decompress(data)
)
run_end: Final = Arrow("run_end", pc.run_end_encode)
dictionary: Final = Arrow("dictionary", pc.dictionary_encode)


def _wrapping(x: Values, y: Values) -> Values:
    return x + y


def _bytewise(combine: Callable[[Values, Values], Values], keep: int = 0) -> Callable[[bytes, bytes], bytes]:
    """Combine two streams byte by byte, the shorter one filled with zeros; the first `keep` bytes stay the first's."""

    def coded(x: bytes, y: bytes) -> bytes:
        size = max(len(x), len(y))
        one, other = (np.frombuffer(stream.ljust(size, b"\0"), np.uint8) for stream in (x, y))
        return x[:keep] + combine(one, other)[keep:].tobytes()

    return coded


ADDITION: Final = Operator("add", _wrapping, columns.add)
STREAM_OPERATORS: Final = (
    Operator("add bytes", _wrapping, _bytewise(lambda x, y: x + y)),
    Operator("xor bytes", _wrapping, _bytewise(lambda x, y: x ^ y)),
    Operator("add bytes after the header", _wrapping, _bytewise(lambda x, y: x + y, keep=9)),
    Operator("average bytes", _wrapping, _bytewise(lambda x, y: (x >> 1) + (y >> 1))),
    Operator("concatenate", _wrapping, lambda x, y: x + y),
)


def _all(operators: Sequence[str], promise: Guarantee) -> dict[str, Guarantee]:
    return dict.fromkeys(operators, promise)


_COLUMN = ("add", "scale", "map", "filter", "sum", "mean", "min", "max", "count", "group_count", "equal")
_LINEAR = ("add", "scale", "mean", "dot", "distance", "matmul")
_GUARANTEES: Final[Mapping[str, dict[str, Guarantee]]] = MappingProxyType(
    {
        **{codec: _all(_COLUMN, "exact") for codec in ("run_end", "dictionary")},
        **{codec: _all(_LINEAR, "bounded") for codec in ("pca", "random_projection", "dct")},
        **{codec: _all((*_COLUMN, *_LINEAR), "impossible") for codec in ("deflate", "zstd")},
    }
)


# --- inside -------------------------------------------------------------------------------------


def _outcome(codec: Codec, op: Operator, x: Values, y: Values) -> tuple[float, str | None]:
    """The error of one sample, and why it failed, None if it did not."""
    wanted = op.plain(x, y)
    try:
        code = op.coded(codec.encode(x), codec.encode(y))
    except Exception as error:
        return np.inf, f"operating: {_first_line(error)}"
    try:
        found = codec.decode(code)
    except Exception as error:
        return np.inf, f"decoding: {_first_line(error)}"
    if found.shape != wanted.shape:
        return np.inf, f"comparing: {found.size:,} values, not {wanted.size:,}"
    if np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"):
        return 0.0, None
    off = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    return float(off.max()), f"comparing: value {int(off.argmax()):,} is off by {off.max():g}"


def _first_line(error: Exception) -> str:
    text = str(error).split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
