"""Arithmetic on linear codes: every error bound holds, against exact rational arithmetic where doubles would not do."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import lake
from lake import algebra

CASES = 10_000


def vectors(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Vectors of many magnitudes, some almost in a few directions, some zero, some nearly each other's opposites."""
    kind = rng.integers(5)
    x = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-20, 20, (n, 1))
    if kind == 1:
        x = rng.standard_normal((n, 2)) @ rng.standard_normal((2, d)) + 1e-9 * rng.standard_normal((n, d))
    elif kind == 2:
        x[: n // 2] = 0
    elif kind == 3:
        x[n // 2 :] = -x[: n - n // 2] * (1 + 1e-13)
    elif kind == 4:
        x = x.astype(np.float32).astype(np.float64)
    return x


def codes_of(rng: np.random.Generator, d: int) -> algebra.LinearCode:
    """A code of one of the three kinds."""
    k = int(rng.integers(1, d + 1))
    kind = rng.integers(3)
    if kind == 0:
        return algebra.pca([vectors(rng, 8, d), vectors(rng, 8, d)], k)
    if kind == 1:
        return algebra.random_projection(d, k, seed=int(rng.integers(2**31)))
    return algebra.dct(d, k)


def exact(values: np.ndarray) -> np.ndarray:
    """The same numbers as fractions."""
    return np.vectorize(Fraction, otypes=[object])(values)


def length(row: np.ndarray) -> float:
    """A vector's length, from its exact square."""
    square = sum((x * x for x in row), Fraction())
    scale = 2 ** max(0, 1100 - 2 * square.numerator.bit_length() + 2 * square.denominator.bit_length())
    return math.isqrt(int(square * scale * scale)) / scale if square else 0.0


def test_no_bound_is_ever_exceeded() -> None:
    """Ten thousand cases of each operator and of chains of them, over three kinds of codes, in exact arithmetic."""
    rng = np.random.default_rng(0)
    n, rounds = 20, CASES // 20
    for _ in range(rounds):
        d = int(rng.integers(1, 7))
        code = codes_of(rng, d)
        x, y = vectors(rng, n, d), vectors(rng, n, d)
        factor, matrix = float(rng.standard_normal()), vectors(rng, d, 3)
        a, b = code.encode(x), code.encode(y)
        mixed = a.add(b.scale(factor))
        ex, ey, em, ef = exact(x), exact(y), exact(matrix), Fraction(factor)
        emixed = ex + ey * ef
        for codes, truth in ((a, ex), (mixed, emixed), (mixed.mean(), emixed.sum(0, keepdims=True) / n)):
            decoded = codes.decode()
            off = exact(decoded.value) - truth
            assert all(length(row) <= bound for row, bound in zip(off, decoded.error, strict=True))
        products = mixed.dot(a)
        assert (np.abs(exact(products.value) - (emixed * ex).sum(1)) <= exact(products.error)).all()
        distances = mixed.distance(b)
        true = [length(row) for row in emixed - ey]
        assert (np.abs(distances.value - true) <= distances.error * (1 + 1e-12)).all()
        product = mixed.matmul(matrix)
        assert (np.abs(exact(product.value) - emixed.dot(em)) <= exact(product.error)).all()


def test_ten_thousand_cases_hold_in_doubles() -> None:
    """The same bounds, with more dimensions than rational arithmetic has time for."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        d = int(rng.integers(20, 64))
        code = codes_of(rng, d)
        x, y = (rng.standard_normal((CASES // 20, d)) for _ in range(2))
        a, b = code.encode(x), code.encode(y)
        slack = 1e-12 * d
        for found, truth in (
            (a.dot(b), (x * y).sum(1)),
            (a.distance(b), np.linalg.norm(x - y, axis=1)),
            (a.add(b).matmul(np.eye(d)), x + y),
        ):
            assert (np.abs(found.value - truth) <= found.error + slack).all()


def test_bounds_are_small_where_the_code_holds_everything() -> None:
    """With all components, or data in their span, what is left is rounding: the bounds say something."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((500, 3)) @ rng.standard_normal((3, 40))

    whole, fitted = algebra.random_projection(40, 40, seed=0), algebra.pca([x[:250], x[250:]], 3)

    for code in (whole, fitted):
        a, b = code.encode(x), code.encode(x[::-1])
        assert a.dot(b).error.max() < 1e-9
        assert a.distance(b).error.max() < 1e-5
        assert a.add(b).decode().error.max() < 1e-9
        assert np.allclose(a.mean().decode().value, x.mean(0))


def test_pca_leaves_out_the_least_and_streams() -> None:
    """No basis of as many directions leaves a smaller mean square; batches give what all at once give."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 12)) * np.linspace(0.1, 3, 12) + 1

    fitted, at_once = algebra.pca([x[:100], x[100:]], 4), algebra.pca([x], 4)

    def rest(code: algebra.LinearCode) -> float:
        return float((code.encode(x).residual ** 2).mean())

    assert np.isclose(rest(fitted), rest(at_once))
    assert np.isclose(rest(fitted), (np.linalg.svd(x)[1][4:] ** 2).sum() / len(x))
    assert rest(fitted) < min(rest(algebra.random_projection(12, 4, seed=seed)) for seed in range(20))


def test_the_cosine_transform_is_scipys() -> None:
    """Orthonormal DCT-II over all axes, lowest frequencies first."""
    from scipy.fft import dctn

    x = np.random.default_rng(4).standard_normal((5, 6 * 4))

    found = algebra.dct((6, 4), 24).encode(x).values
    wanted = dctn(x.reshape(5, 6, 4), axes=(1, 2), norm="ortho").reshape(5, -1)

    assert np.allclose(np.sort(found, 1), np.sort(wanted, 1))
    assert np.allclose(found[:, 0], wanted[:, 0])


def test_chance_keeps_distances_nearly() -> None:
    """A random projection estimates distances without bias, far better than its bounds promise."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, 300, 512))
    code = algebra.random_projection(512, 128, seed=0)

    found = code.encode(x).distance(code.encode(y)).value

    assert abs((found / np.linalg.norm(x - y, axis=1)).mean() - 1) < 0.05


def test_codes_are_stored_beside_other_columns(tmp_path: Path) -> None:
    """A dataset of codes, read back, computes as the codes did."""
    rng = np.random.default_rng(6)
    code = algebra.dct((4, 4), 5)
    a = code.encode(rng.standard_normal((30, 16)))
    lk = lake.open(tmp_path / "lake", cache_dir=tmp_path / "cache")
    lk.commit("codes", a.table())

    b = code.read(lk.dataset("codes").scan().to_table())

    assert np.array_equal(a.dot(a).value, b.dot(b).value)
    assert (b.dot(b).error >= a.dot(a).error).all()


def test_what_a_linear_code_cannot_take_is_refused() -> None:
    """NaN, shapes, strange bases, vectors beyond what squares of doubles hold."""
    code, other = algebra.dct(4, 2), algebra.dct(4, 3)
    one = code.encode(np.ones((2, 4)))

    with pytest.raises(ValueError, match="NaN"):
        code.encode([[1.0, math.nan, 0, 0]])
    with pytest.raises(ValueError, match=r"vectors are \[n, 4\], not \[2, 3\]"):
        code.encode(np.ones((2, 3)))
    with pytest.raises(ValueError, match="different bases"):
        one.add(other.encode(np.ones((2, 4))))
    with pytest.raises(ValueError, match="2 and 3 vectors"):
        one.add(code.encode(np.ones((3, 4))))
    with pytest.raises(ValueError, match="orthonormal"):
        algebra.LinearCode(np.ones((2, 4)))
    with pytest.raises(ValueError, match="5 components of 4"):
        algebra.dct(4, 5)
    with pytest.raises(ValueError, match="no vectors"):
        algebra.pca([], 1)
    with pytest.raises(ValueError, match="no mean"):
        one[:0].mean()
    with pytest.raises(ValueError, match="finite number"):
        one.scale(math.inf)
    with pytest.raises(OverflowError, match=r"1\.8e308"), np.errstate(over="ignore", invalid="ignore"):
        code.encode(np.full((1, 4), 1e200)).dot(code.encode(np.full((1, 4), 1e200)))


def test_algebra_needs_no_torch() -> None:
    """It is for machines that only look."""
    code = "import sys, lake.algebra; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_complex_vectors_are_refused() -> None:
    """Their imaginary part is not dropped: codes, bases and products of complex numbers are a TypeError."""
    x = np.ones((3, 4)) + 1j
    code = algebra.dct(4, 2)
    for attempt in (
        lambda: code.encode(x),
        lambda: algebra.pca([x], 2),
        lambda: code.encode(x.real).matmul(x.T),
    ):
        with pytest.raises(TypeError, match="real numbers"):
            attempt()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: algebra.pca([np.eye(3)], "2"), "components is a whole number, not '2'"),
        (lambda: algebra.pca([np.eye(3), np.eye(2)], 1), r"vectors are \[n, 3\], not \[2, 2\]"),
        (lambda: algebra.pca([[["a", "b"]]], 1), r"vectors are numbers \[n, d\]"),
        (lambda: algebra.pca([np.full((2, 2), 1e200)], 1), "beyond a double"),
        (lambda: algebra.random_projection(3.0, 1, seed=0), "dimensions is a whole number, not 3.0"),
        (lambda: algebra.random_projection(3, 1, seed=None), "seed is a whole number, not None"),
        (lambda: algebra.dct(1.5, 1), "shape is a whole number, not 1.5"),
        (lambda: algebra.dct(3, True), "components is a whole number, not True"),
        (lambda: algebra.LinearCode([[1.0, 0.0]]), r"a basis is an array \[k, d\], not list"),
    ],
)
def test_what_a_basis_cannot_be_made_of_is_named(make: Callable[[], object], says: str) -> None:
    """Numbers by their argument, vectors by their shape."""
    with pytest.raises((TypeError, ValueError, OverflowError), match=says):
        make()


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda code, codes: codes.add(np.eye(3)), "codes too.*not ndarray"),
        (lambda code, codes: codes.dot(3), "codes too.*not int"),
        (lambda code, codes: codes.scale(1j), "scaled by a real number, not 1j"),
        (lambda code, codes: codes.scale([1, 2]), "scaled by a real number"),
        (lambda code, codes: codes.matmul([1, 2]), r"a matrix is \[3, m\], not \[2\]"),
        (lambda code, codes: codes[0], "taken by slice"),
        (lambda code, codes: code.encode([[1, 2, 3], [1, 2]]), r"vectors are numbers \[n, 3\]"),
        (lambda code, codes: code.read([1]), "a table with the columns code, residual, leak, not list"),
        (lambda code, codes: code.read(codes.table().select(["code"])), "no column 'residual' among code"),
        (
            lambda code, codes: code.read(algebra.dct(3, 1).encode(np.eye(3)).table()),
            "the basis is of 2 vectors",
        ),
    ],
)
def test_what_is_no_operand_is_named(ask: Callable[..., object], says: str) -> None:
    """Before NumPy stumbles over it."""
    code = algebra.dct(3, 2)
    with pytest.raises((TypeError, ValueError), match=says):
        ask(code, code.encode(np.eye(3)))


def test_sizes_of_numpy_make_the_same_basis() -> None:
    """Of one axis or several."""
    assert np.array_equal(algebra.dct(np.array([2, 3]), np.int64(4)).basis, algebra.dct((2, 3), 4).basis)
