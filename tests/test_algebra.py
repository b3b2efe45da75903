"""Operators on encoded columns: decode, compute, encode gives the same; and no value is ever expanded."""

from __future__ import annotations

import math
import os
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake import algebra
from lake.algebra.totals import total
from tests.strategies import INTEGERS

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
EXAMPLES = 1000 if FULL else 40
PAGE = Path(__file__).parents[1] / "docs" / "algebra.md"
NUMBERS = [*INTEGERS, pa.float32(), pa.float64()]
ENCODE = {"run_end": pc.run_end_encode, "dictionary": pc.dictionary_encode}
HOSTILE = [0.0, -0.0, 1.0, -2.5, math.nan, math.inf, -math.inf, 1e308, 5e-324, 0.1]


def decode(array: pa.Array) -> pa.Array:
    """The values, expanded."""
    if isinstance(array, pa.RunEndEncodedArray):
        return pc.run_end_decode(array)
    return array.dictionary_decode()


def values_of(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Few values, so that runs and dictionaries are worth their name; extremes among them."""
    if pa.types.is_floating(type_):
        some = [x for x in HOSTILE if type_ == pa.float64() or abs(x) < 1e38 or not math.isfinite(x)]
        return st.sampled_from([pa.scalar(x, type_).as_py() for x in some])
    low = 0 if pa.types.is_unsigned_integer(type_) else -(2 ** (type_.bit_width - 1))
    high = 2 ** (type_.bit_width - (low < 0)) - 1
    return st.sampled_from(sorted({low, high, max(low, -1), 0, 1, 2, 7, high // 2}))


@st.composite
def columns(draw: st.DrawFn, types: list[pa.DataType] = NUMBERS, like: int | None = None) -> pa.Array:
    """A plain array with runs; of so many rows if `like` says."""
    type_ = draw(st.sampled_from(types))
    rows = like if like is not None else draw(st.integers(0, 30))
    found: list[Any] = []
    while len(found) < rows:
        found += [draw(st.none() | values_of(type_))] * draw(st.integers(1, 6))
    return pa.array(found[:rows], type_)


def encodings(draw: st.DrawFn, plain: pa.Array, how: str) -> pa.Array:
    """The array encoded, as a slice of a longer one, with dictionary values that nobody uses and nulls among them."""
    if how == "dictionary":
        extra = draw(st.lists(st.none() | values_of(plain.type), max_size=3))
        values = pa.concat_arrays([pa.array(extra, plain.type), plain.dictionary_encode().dictionary])
        codes = pc.add(plain.dictionary_encode().indices, len(extra))
        if None in extra and draw(st.booleans()):
            codes = codes.fill_null(extra.index(None))
        return pa.DictionaryArray.from_arrays(codes, values)
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    ends = pa.nulls(before, plain.type), plain, pa.nulls(after, plain.type)
    return pc.run_end_encode(pa.concat_arrays(ends)).slice(before, len(plain))


@st.composite
def encoded(draw: st.DrawFn, types: list[pa.DataType] = NUMBERS) -> tuple[pa.Array, pa.Array]:
    """An array, plain and encoded in one way or the other."""
    plain = draw(columns(types))
    return plain, encodings(draw, plain, draw(st.sampled_from(sorted(ENCODE))))


def same(found: pa.Array, wanted: pa.Array) -> bool:
    """Equal in type, nulls and values, NaN being itself."""
    return found.type == wanted.type and repr(found.to_pylist()) == repr(wanted.to_pylist())


def outcome(call: Callable[[], pa.Array]) -> pa.Array | None:
    """What a call gives; None if it overflows."""
    try:
        return call()
    except (OverflowError, pa.ArrowInvalid):
        return None


# --- columns from columns ---------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(st.data(), st.sampled_from(sorted(ENCODE)))
def test_adding_codes_adds_what_they_stand_for(data: st.DataObject, how: str) -> None:
    """decode(encode(x) + encode(y)) = x + y, and where one overflows the other does."""
    type_ = data.draw(st.sampled_from(NUMBERS))
    x = data.draw(columns([type_]))
    y = data.draw(columns([type_], like=len(x)))
    left, right = (encodings(data.draw, plain, how) for plain in (x, y))

    wanted = outcome(lambda: pc.add_checked(x, y))
    found = outcome(lambda: algebra.add(left, right))

    assert (found is None) == (wanted is None)
    if wanted is not None:
        assert same(decode(found), wanted)
        assert type(found) is type(left)
        found.validate(full=True)
    assert same(decode(algebra.equal(left, right)), pc.equal(x, y))


@settings(max_examples=EXAMPLES)
@given(st.data(), encoded())
def test_scaling_mapping_and_comparing_are_done_to_values(
    data: st.DataObject, both: tuple[pa.Array, pa.Array]
) -> None:
    """Each equals Arrow's kernel on the plain array, and values that no row has disturb nothing."""
    plain, column = both
    scalar = pa.scalar(data.draw(values_of(plain.type)), plain.type)

    for mine, kernel in ((algebra.add, pc.add_checked), (algebra.scale, pc.multiply_checked)):
        wanted = outcome(lambda kernel=kernel: kernel(plain, scalar))
        found = outcome(lambda mine=mine: mine(column, scalar.as_py()))
        assert (found is None) == (wanted is None)
        assert wanted is None or same(decode(found), wanted)
    assert same(decode(algebra.equal(column, scalar)), pc.equal(plain, scalar))
    assert same(decode(algebra.map(column, pc.is_valid)), plain.is_valid())


@settings(max_examples=EXAMPLES)
@given(st.data(), encoded())
def test_filtering_keeps_the_rows_that_a_plain_filter_keeps(
    data: st.DataObject, both: tuple[pa.Array, pa.Array]
) -> None:
    """By a function of values, and by masks in every encoding."""
    plain, column = both
    limit = pa.scalar(data.draw(values_of(plain.type)), plain.type)
    mask = pa.array(
        data.draw(st.lists(st.sampled_from([True, False, None]), min_size=len(plain), max_size=len(plain))),
        pa.bool_(),
    )

    kept = algebra.filter(column, lambda values: pc.greater(values, limit))

    assert same(decode(kept), plain.filter(pc.greater(plain, limit)))
    assert kept.type == column.type
    for coded in (mask, pc.run_end_encode(mask), mask.dictionary_encode(), pa.chunked_array([mask])):
        assert same(decode(algebra.filter(column, coded)), plain.filter(mask))


# --- values from columns ------------------------------------------------------------------------


def exact_sum(plain: pa.Array) -> Fraction | float:
    """The sum of the valid values, in rationals."""
    held = [x for x in plain.to_pylist() if x is not None]
    odd = [x for x in held if not math.isfinite(x)]
    return (
        math.fsum(odd)
        if odd and len(set(odd)) == 1
        else math.nan
        if odd
        else sum(map(Fraction, held), Fraction())
    )


@settings(max_examples=EXAMPLES)
@given(encoded())
def test_reductions_are_those_of_the_expanded_array(both: tuple[pa.Array, pa.Array]) -> None:
    """count, min, max, groups as Arrow gives them; sum and mean exact, rounded once."""
    plain, column = both
    count = len(plain) - plain.null_count

    assert algebra.count(column) == pc.count(plain)
    extremes = pc.min_max(plain)
    for name, found in (("min", algebra.min(column)), ("max", algebra.max(column))):
        both_zero = found.as_py() == extremes[name].as_py() == 0
        assert both_zero or repr(found) == repr(extremes[name])
    groups = algebra.group_count(column)
    wanted = pc.value_counts(plain).to_pylist()
    told = zip(groups["value"].to_pylist(), groups["count"].to_pylist(), strict=True)
    assert sorted(map(repr, told)) == sorted(repr((one["values"], one["counts"])) for one in wanted)
    exact = exact_sum(plain)
    mean = algebra.mean(column).as_py()
    assert (mean is None) == (not count)
    assert mean is None or repr(mean) == repr(float(exact / count))


@settings(max_examples=EXAMPLES)
@given(encoded())
def test_a_sum_is_exact_or_an_error(both: tuple[pa.Array, pa.Array]) -> None:
    """Of integers the integer, of floats the nearest double of the exact sum; OverflowError beyond the type."""
    plain, column = both
    type_ = pc.sum(plain).type
    exact = exact_sum(plain)

    found = outcome(lambda: algebra.sum(column))

    if not len(plain) - plain.null_count:
        assert found == pa.scalar(None, type_)
    elif pa.types.is_integer(type_):
        low, high = (0, 2**64) if type_ == pa.uint64() else (-(2**63), 2**63)
        assert found == (pa.scalar(int(exact), type_) if low <= exact < high else None)
    else:
        try:
            assert repr(found) == repr(pa.scalar(float(exact), type_))
        except OverflowError:
            assert found is None


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2**40)), max_size=40)
)
def test_totals_are_exact_for_all_doubles(pairs: list[tuple[float, int]]) -> None:
    """Equal to rational arithmetic, subnormal numbers included."""
    rows = np.array([count for _, count in pairs], np.int64)

    found = total(pa.array([x for x, _ in pairs], pa.float64()), rows)

    assert found == sum((Fraction(x) * count for x, count in pairs), Fraction())


def test_decimals_and_halves_add_up_exactly() -> None:
    """As decimals and as doubles; a decimal that outgrows its type is an error."""
    prices = pa.array([Decimal("0.10"), None, Decimal("0.10"), Decimal("99999999.99")], pa.decimal128(10, 2))
    halves = pa.array([0.5, 0.5, 1.5, None], pa.float16())

    assert algebra.sum(prices.dictionary_encode()) == pc.sum(prices)
    assert algebra.mean(prices.dictionary_encode()).as_py() == float(Fraction("100000000.19") / 3)
    assert algebra.sum(pc.run_end_encode(halves)).as_py() == 2.5
    assert algebra.max(pc.run_end_encode(halves)) == pa.scalar(1.5, pa.float16())
    most = pa.array([Decimal("9" * 38)], pa.decimal128(38, 0)).dictionary_encode()
    with pytest.raises(OverflowError, match="decimal128"):
        algebra.sum(pa.chunked_array([most, most]))


def test_values_of_every_kind_have_extremes_and_groups() -> None:
    """Texts, moments and booleans too; a sum of texts is refused."""
    words = pa.chunked_array([["wren", "tit"], [None, "wren"]]).dictionary_encode()
    days = pc.run_end_encode(pa.array([3, 3, 1, None], pa.date32()))

    assert algebra.min(words).as_py() == "tit"
    assert algebra.max(days) == pa.scalar(3, pa.date32())
    assert algebra.group_count(words).sort_by("value").to_pydict() == {
        "value": ["tit", "wren", None],
        "count": [1, 2, 1],
    }
    with pytest.raises(TypeError, match="string cannot be added"):
        algebra.sum(words)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", sorted(ENCODE))
def test_overflow_names_the_numbers(how: str) -> None:
    """What was added to what, in which type; of a sum, the sum itself and the way out."""
    most = ENCODE[how](pa.array([1, 5, 127], pa.int8()))
    large = ENCODE[how](pa.array([2**62] * 3))

    with pytest.raises(OverflowError, match=r"add: 127 \+ 1 overflows int8"):
        algebra.add(most, 1)
    with pytest.raises(OverflowError, match=r"multiply: 127 \* 2 overflows int8"):
        algebra.scale(most, 2)
    with pytest.raises(OverflowError, match=f"3 rows is {3 * 2**62}.*float64"):
        algebra.sum(large)
    assert algebra.mean(large).as_py() == 2.0**62
    with pytest.raises(OverflowError, match="1e308"):
        algebra.sum(ENCODE[how](pa.array([1e308] * 2)))


def test_what_does_not_fit_together_is_refused() -> None:
    """Lengths, encodings, numbers of another type, plain arrays, functions that lose rows."""
    runs, codes = pc.run_end_encode(pa.array([1, 1, 2])), pa.array([1, 1, 2]).dictionary_encode()

    with pytest.raises(ValueError, match="3 and 2 rows"):
        algebra.add(runs, runs[:2])
    with pytest.raises(TypeError, match="one encoding"):
        algebra.add(runs, codes)
    with pytest.raises(ValueError, match=r"0\.5 is no int64"):
        algebra.scale(codes, 0.5)
    with pytest.raises(TypeError, match="run_end_encode or dictionary_encode"):
        algebra.sum(pa.array([1]))
    with pytest.raises(ValueError, match="2 values of as many, not 1"):
        algebra.map(runs, lambda values: values[:1])
    with pytest.raises(TypeError, match="boolean mask"):
        algebra.filter(runs, runs)
    with pytest.raises(ValueError, match="mask of 2 rows"):
        algebra.filter(runs, pa.array([True, False]))


# --- what it costs --------------------------------------------------------------------------------


def test_columns_that_could_never_be_expanded_are_computed_with() -> None:
    """10**15 rows of int64 are 8 PB: an operator that expanded one would not come back."""
    trillion = 10**12
    ends = pa.array(np.arange(1, 1001) * trillion)
    x = pa.RunEndEncodedArray.from_arrays(ends, pa.array(np.arange(1000)))
    y = pa.RunEndEncodedArray.from_arrays(pa.array([7, 1000 * trillion]), pa.array([1, 2]))

    assert algebra.sum(x).as_py() == 999 * 1000 // 2 * trillion
    kept = algebra.filter(x, lambda values: pc.less(values, 2))
    assert len(kept) == 2 * trillion
    summed = algebra.add(x, y)
    assert algebra.sum(summed).as_py() == 999 * 1000 // 2 * trillion + 2 * 1000 * trillion - 7
    assert algebra.count(algebra.filter(summed, algebra.equal(x, 3))).as_py() == trillion


def test_no_operator_allocates_more_than_runs_take() -> None:
    """Peaks of Arrow's memory and of Python's, against 8 bytes a row: a hundredth of them at the most."""
    rows, run = 2_000_000, 1000
    ends = pa.array(np.arange(run, rows + 1, run))
    values = pa.array(np.random.default_rng(0).integers(0, 50, rows // run))
    x = pa.RunEndEncodedArray.from_arrays(ends, values)
    y = pa.RunEndEncodedArray.from_arrays(
        pa.concat_arrays([pc.subtract(ends, 3), ends[-1:]]), pa.concat_arrays([values, values[:1]])
    )
    operators: list[Callable[[], Any]] = [
        lambda: algebra.sum(x),
        lambda: algebra.mean(x),
        lambda: algebra.min(x),
        lambda: algebra.group_count(x),
        lambda: algebra.add(x, y),
        lambda: algebra.equal(x, y),
        lambda: algebra.scale(x, 3),
        lambda: algebra.filter(x, lambda values: pc.greater(values, 25)),
    ]
    for operator in operators:
        pool = pa.proxy_memory_pool(pa.default_memory_pool())
        before = pa.default_memory_pool()
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            operator()
            peak = pool.max_memory() + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(before)
        assert 0 < peak < rows * 8 / 25


# --- whether it can be done at all -----------------------------------------------------------------


def pairs(count: int, size: int = 256) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of arrays of bytes that compress to a quarter."""
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(0, 4, (2, size)).astype(np.uint8)) for _ in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("op", algebra.STREAM_OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize("codec", [algebra.deflate, algebra.zstd], ids=lambda codec: codec.name)
def test_streams_of_compressors_cannot_be_added(codec: Any, op: Any) -> None:
    """None of the operators on streams succeeds once, and where it breaks is said."""
    told = algebra.check_homomorphism(codec, op, pairs(1000 if FULL else 50))

    assert told.rate == 0
    assert told.max_error > 0
    assert told.breaks_at is not None
    assert told.breaks_at.startswith("sample 0: ")
    assert algebra.guarantees(codec.name)["add"] == "impossible"


def test_what_a_compressor_gave_up_on_can_be_added() -> None:
    """zstd stores noise as it is, behind a header: there adding bytes works, and nothing was compressed."""
    noise = np.random.default_rng(0).integers(0, 256, (20, 2, 256)).astype(np.uint8)
    by_name = {op.name: op for op in algebra.STREAM_OPERATORS}

    told = algebra.check_homomorphism(
        algebra.zstd, by_name["add bytes after the header"], [(x, y) for x, y in noise]
    )

    assert told.rate == 1
    assert len(algebra.zstd.encode(noise[0, 0])) > 256


@pytest.mark.parametrize("codec", [algebra.run_end, algebra.dictionary], ids=lambda codec: codec.name)
def test_codes_of_columns_can(codec: Any) -> None:
    """Every sample succeeds, so the check can tell; wrong sums are told from right ones."""
    samples = [(x.astype(np.int64), y.astype(np.int64)) for x, y in pairs(20)]
    wrong = algebra.Operator("add twice", lambda x, y: x + y, lambda x, y: algebra.add(algebra.add(x, y), 1))

    told = algebra.check_homomorphism(codec, algebra.ADDITION, samples)

    assert (told.rate, told.max_error, told.breaks_at) == (1.0, 0.0, None)
    assert algebra.guarantees(codec.name)["add"] == "exact"
    off = algebra.check_homomorphism(codec, wrong, samples)
    assert (off.rate, off.max_error) == (0.0, 1.0)
    with pytest.raises(ValueError, match="no samples"):
        algebra.check_homomorphism(codec, algebra.ADDITION, [])
    with pytest.raises(ValueError, match="run_end"):
        algebra.guarantees("gzip")


def test_numbers_above_int64_are_numbers() -> None:
    """Those of uint64 as well, in any column; what no type holds is a clear error."""
    most = 2**64 - 1
    for rows in ([], [0, 0, 0]):
        column = pa.array(rows, pa.uint64()).dictionary_encode()
        assert algebra.add(column, most).to_pylist() == [most] * len(rows)
    for number, type_ in ((most, pa.int64()), (2**70, pa.uint64()), (-1, pa.uint64())):
        with pytest.raises(ValueError, match=f"{number} is no "):
            algebra.add(pa.array([1, 1], type_).dictionary_encode(), number)


def test_entropy_is_bits_per_byte() -> None:
    """Nothing is certain, one value of two is a bit, all alike are eight."""
    assert algebra.entropy(b"") == algebra.entropy(b"aaaa") == 0
    assert algebra.entropy(b"abab") == 1
    assert algebra.entropy(bytes(range(256))) == 8
    wide = np.arange(4)
    assert algebra.entropy(memoryview(wide)) == algebra.entropy(wide.tobytes())


@pytest.mark.parametrize("encode", ENCODE.values(), ids=ENCODE)
def test_what_arrow_has_no_kernel_for_is_said_in_terms_of_the_column(
    encode: Callable[[pa.Array], Any],
) -> None:
    """Values that are not compared, a function that judges without booleans, and what is no function."""
    numbers, texts = encode(pa.array([1, 1, 2])), encode(pa.array(["a", "a", "b"]))
    for ask, says in (
        (lambda: algebra.equal(texts, numbers), "equal: no such operation on string and int64"),
        (
            lambda: algebra.filter(numbers, lambda values: values),
            "whether its rows stay, as booleans, not as int64",
        ),
        (lambda: algebra.map(numbers, 3), "a function of an array of values is wanted, not int"),
    ):
        with pytest.raises(TypeError, match=says):
            ask()
