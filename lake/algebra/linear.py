"""Linear codes of vectors, and arithmetic on them with error bounds that hold.

A code keeps of a vector x [d] its coordinates z = W x [k] in an orthonormal basis W [k, d], and two numbers that say
what was left out: an upper bound of the length of the rest x - W'z, and one of the little of it that lies in the
basis after all, since arithmetic rounds. All bounds follow from these by the inequalities of Cauchy and of the
triangle, with the rounding of the operator itself added; none is a probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.asked import whole

Floats = npt.NDArray[np.float64]

_ROUNDING: Final = 2.0**-52  # twice what one operation on doubles may lose
_MARGIN: Final = 1 + 2.0**-30  # what computing a bound may itself lose
_COLUMNS: Final = ("code", "residual", "leak")  # of stored codes
_LEAST: Final = 1e-150  # lengths below are lost when coordinates are squared


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """`value`, which differs from the truth by at most `error`.

    Both have one shape, except where vectors are meant: then `error` bounds the length of each row's difference.
    """

    value: Floats
    error: Floats


@dataclass(frozen=True, eq=False)
class LinearCode:
    """Coordinates in an orthonormal basis [k, d]. Made by `pca`, `random_projection` and `dct`.

    `gain`: what products of coordinates are multiplied by to estimate those of vectors; 1 where the basis holds
    most of them, d/k where it was drawn by chance. The bounds hold with any.
    """

    basis: Floats
    gain: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.basis, np.ndarray):
            raise TypeError(f"a basis is an array [k, d], not {type(self.basis).__name__}")
        if self.basis.ndim != 2 or len(self.basis) > self.basis.shape[1] or not len(self.basis):
            raise ValueError(f"a basis is [k, d] with 1 <= k <= d, not {list(self.basis.shape)}")
        if not self.slack < 1e-6:
            raise ValueError("the rows of a basis are orthonormal")

    @cached_property
    def slack(self) -> float:
        """How far from orthonormal the basis is: a bound of the norm of W W' - 1."""
        off = self.basis @ self.basis.T - np.eye(len(self.basis))
        return float(np.linalg.norm(off)) * _MARGIN + self.rounding

    @property
    def rounding(self) -> float:
        """What a product with the basis may lose to rounding, of the length of what is multiplied."""
        return (self.basis.size + 8) * _ROUNDING

    def encode(self, vectors: npt.ArrayLike) -> Codes:
        """The codes of vectors [n, d].

        Raises:
            ValueError: another shape, or a value that is not finite.
        """
        x = _matrix(vectors, self.basis.shape[1])
        z = x @ self.basis.T
        rest = x - z @ self.basis
        rounding = self.rounding * (_norms(x) + _norms(z))
        return _made(self, z, _norms(rest) + rounding, _norms(rest @ self.basis.T) + rounding)

    def read(self, table: pa.Table) -> Codes:
        """The codes that a table holds as `Codes.table` made it, or a scan's batches of such columns.

        Raises:
            TypeError: not a table. ValueError: a column is missing, or `code` is not of as many numbers as the basis.
        """
        if not isinstance(table, pa.Table):
            raise TypeError(
                f"read() takes a table with the columns {', '.join(_COLUMNS)}, not {type(table).__name__}"
            )
        if missing := [name for name in _COLUMNS if name not in table.column_names]:
            raise ValueError(f"no column {missing[0]!r} among {', '.join(table.column_names)}")
        flat = np.asarray(table["code"].combine_chunks().flatten())
        if len(flat) != len(table) * len(self.basis):
            found = table.schema.field("code").type
            raise ValueError(f"column 'code' is {found}, and the basis is of {len(self.basis)} vectors")
        values = flat.reshape(-1, len(self.basis))
        return _made(self, values, *(np.asarray(table[name], np.float64) for name in ("residual", "leak")))


@dataclass(frozen=True, eq=False)
class Codes:
    """Vectors in coordinates: `values` [n, k]; `residual` [n] bounds what they leave out.

    `leak` [n] bounds the part of it in the basis. An operator gives codes, or a `Bounded`.
    """

    code: LinearCode
    values: Floats
    residual: Floats
    leak: Floats

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> Codes:
        if not isinstance(rows, slice):
            raise TypeError(f"codes are taken by slice, [{rows!r}:...] for one, not by {type(rows).__name__}")
        return Codes(self.code, self.values[rows], self.residual[rows], self.leak[rows])

    def table(self) -> pa.Table:
        """The codes as Arrow columns, to be stored beside others: `code`, `residual`, `leak`."""
        code = pa.FixedSizeListArray.from_arrays(pa.array(self.values.ravel()), self.values.shape[1])
        return pa.table({"code": code, "residual": self.residual, "leak": self.leak})

    def decode(self) -> Bounded:
        """The vectors [n, d], each as long a way off as `error` [n] says at most."""
        return _bounded(
            self.values @ self.code.basis, self.residual + self.code.rounding * _norms(self.values)
        )

    def add(self, other: Codes) -> Codes:
        """Codes of the sums, row by row; one row is added to all."""
        self._check(other)
        values = self.values + other.values
        lost = _ROUNDING * _norms(values)
        return _made(
            self.code, values, self.residual + other.residual + lost, self.leak + other.leak + 2 * lost
        )

    def scale(self, factor: float) -> Codes:
        """Codes of the vectors times a number."""
        if not isinstance(factor, int | float | np.integer | np.floating):
            raise TypeError(f"vectors are scaled by a real number, not {factor!r}")
        if not np.isfinite(factor):
            raise ValueError(f"vectors are scaled by a finite number, not {factor}")
        values = self.values * factor
        lost = _ROUNDING * _norms(values)
        by = abs(factor)
        return _made(self.code, values, by * self.residual + lost, by * self.leak + 2 * lost)

    def mean(self) -> Codes:
        """The code [1, k] of the mean of all vectors.

        Raises:
            ValueError: there are none.
        """
        if not len(self):
            raise ValueError("no vectors, no mean")
        lost = (len(self) + 1) * _ROUNDING * _norms(self.values).mean()
        residual, leak = self.residual.mean() + lost, self.leak.mean() + 2 * lost
        values = self.values.mean(0, keepdims=True)
        return _made(self.code, values, np.atleast_1d(residual), np.atleast_1d(leak))

    def dot(self, other: Codes) -> Bounded:
        """Scalar products [n], row by row; one row meets all."""
        self._check(other)
        inside = (self.values * other.values).sum(1)
        beyond, doubt = self.residual * other.residual, self._doubt(other)
        value = np.clip(inside * self.code.gain, inside - beyond, inside + beyond)
        return _bounded(value, beyond + np.abs(value - inside) + doubt)

    def distance(self, other: Codes) -> Bounded:
        """Euclidean distances [n], row by row; one row meets all."""
        self._check(other)
        inside = _norms(self.values - other.values)
        rounding = self.code.rounding * (_norms(self.values) + _norms(other.values))
        doubt = self.leak + other.leak + 3 * self.code.slack * inside + rounding
        low = np.maximum(inside - doubt, 0.0)
        high = np.hypot(inside + doubt, self.residual + other.residual)
        value = (low + high) / 2 if self.code.gain == 1 else np.clip(inside * self.code.gain**0.5, low, high)
        return _bounded(value, np.maximum(high - value, value - low))

    def matmul(self, matrix: npt.ArrayLike) -> Bounded:
        """The vectors times a matrix [d, m]: products [n, m]."""
        basis = self.code.basis
        m = np.asarray(matrix)
        if m.ndim != 2 or len(m) != basis.shape[1]:
            raise ValueError(f"a matrix is [{basis.shape[1]}, m], not {list(m.shape)}")
        m = _matrix(m.T).T
        inside = basis @ m
        sizes = np.linalg.norm(m, axis=0)
        lost = self.code.rounding * sizes
        beyond = np.linalg.norm(m - basis.T @ inside, axis=0) + lost
        error = (
            np.outer(self.residual, beyond) + np.outer(self.leak, sizes) + np.outer(_norms(self.values), lost)
        )
        return _bounded(self.values @ inside, error)

    def _doubt(self, other: Codes) -> Floats:
        """What scalar products owe to rounding."""
        x, y = _norms(self.values), _norms(other.values)
        found: Floats = (self.code.slack + self.code.rounding) * x * y + x * other.leak + y * self.leak
        return found

    def _check(self, other: Codes) -> None:
        if not isinstance(other, Codes):
            raise TypeError(
                f"the other operand is codes too, encode() makes them, not {type(other).__name__}"
            )
        if other.code is not self.code and not np.array_equal(other.code.basis, self.code.basis):
            raise ValueError("codes of different bases have nothing in common")
        if len(self) != len(other) and 1 not in (len(self), len(other)):
            raise ValueError(f"{len(self):,} and {len(other):,} vectors do not go row by row")


# --- bases --------------------------------------------------------------------------------------


def pca(batches: Iterable[npt.ArrayLike], components: int) -> LinearCode:
    """The basis [components, d] that leaves out the least of these vectors, batches of [n, d], in mean square.

    Principal directions of the second moment, not of the covariance, so that the code is linear and codes of sums
    are sums of codes. One pass over the batches; memory d x d.

    Raises:
        ValueError: no vectors, of different lengths, or fewer dimensions than components.
        OverflowError: vectors whose squares are beyond a double.
    """
    components = whole("components", components)
    moment: Floats | None = None
    for batch in batches:
        x = _matrix(batch, None if moment is None else len(moment))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
            moment = x.T @ x if moment is None else moment + x.T @ x
    if moment is None:
        raise ValueError("no vectors to fit a basis to")
    _check_components(components, len(moment))
    _, directions = np.linalg.eigh(_finite(moment))
    return LinearCode(np.ascontiguousarray(directions[:, ::-1][:, :components].T))


def random_projection(dimensions: int, components: int, *, seed: int) -> LinearCode:
    """A basis drawn by chance: no data to fit, distances and products nearly kept where `components` are many."""
    dimensions, components = whole("dimensions", dimensions), whole("components", components)
    _check_components(components, dimensions)
    drawn = np.random.default_rng(whole("seed", seed, least=0)).standard_normal((dimensions, components))
    return LinearCode(np.ascontiguousarray(np.linalg.qr(drawn).Q.T), gain=dimensions / components)


def dct(shape: int | Sequence[int], components: int) -> LinearCode:
    """The lowest frequencies of the orthonormal cosine transform of arrays of this shape, flattened in C order."""
    axes = tuple(whole("shape", size, least=1) for size in np.atleast_1d(shape).tolist())
    components = whole("components", components)
    _check_components(components, int(np.prod(axes)))
    frequencies = np.stack(np.meshgrid(*map(np.arange, axes), indexing="ij")).reshape(len(axes), -1)
    lowest = np.argsort(frequencies.sum(0), kind="stable")[:components]
    rows = [_cosines(size)[frequencies[axis, lowest]] for axis, size in enumerate(axes)]
    basis = reduce(lambda left, right: np.einsum("ki,kj->kij", left, right).reshape(components, -1), rows)
    return LinearCode(np.ascontiguousarray(basis))


def _check_components(components: int, dimensions: int) -> None:
    if not 1 <= components <= dimensions:
        raise ValueError(f"{components} components of {dimensions} dimensions")


def _cosines(size: int) -> Floats:
    """The orthonormal cosine transform [frequency, place] of one axis."""
    at = np.pi * np.outer(np.arange(size), np.arange(size) + 0.5) / size
    found: Floats = np.cos(at) * np.sqrt(2 / size)
    found[0] = np.sqrt(1 / size)
    return found


# --- inside -------------------------------------------------------------------------------------


def _made(code: LinearCode, values: Floats, residual: Floats, leak: Floats) -> Codes:
    return Codes(code, _finite(values), _above(residual), _above(leak))


def _bounded(value: Floats, error: Floats) -> Bounded:
    return Bounded(_finite(value), _above(error))


def _matrix(values: npt.ArrayLike, width: int | None = None) -> Floats:
    try:
        given = np.asarray(values)
        if np.iscomplexobj(given):
            raise TypeError("a linear code is of real numbers: code real and imaginary part as two vectors")
        found = given.astype(np.float64, copy=False)
    except ValueError as error:
        raise ValueError(f"vectors are numbers [n, {width or 'd'}]: {error}") from error
    if found.ndim != 2 or (width is not None and found.shape[1] != width):
        raise ValueError(f"vectors are [n, {width or 'd'}], not {list(found.shape)}")
    if not np.isfinite(found).all():
        raise ValueError("a linear code is of finite numbers: fill or leave out NaN and infinities first")
    return found


def _finite(values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise OverflowError("a result is beyond a double's 1.8e308")
    return values


def _above(bound: Floats) -> Floats:
    return _finite(bound * _MARGIN + _LEAST)


def _norms(rows: Floats) -> Any:
    return np.linalg.norm(rows, axis=1)
