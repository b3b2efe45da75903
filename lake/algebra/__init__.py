"""Compute on encoded data: sums, filters and more over runs, dictionaries and linear codes, without expanding them.

What each operator promises, as `guarantees(codec)` says:

- run-end and dictionary encoded Arrow arrays, with the functions of this module: exact;
- a column of a dataset, `column(ds, name)`, for what gives a value: exact, and what the manifest's statistics
  settle is not read;
- linear codes (`pca`, `random_projection`, `dct`), with the methods of `Codes`: bounded, each result by an error of
  its own;
- streams of deflate and zstd: impossible, as `check_homomorphism` shows.
"""

from lake.algebra.checks import (
    ADDITION,
    STREAM_OPERATORS,
    Codec,
    Homomorphism,
    Operator,
    check_homomorphism,
    deflate,
    dictionary,
    entropy,
    guarantees,
    run_end,
    zstd,
)
from lake.algebra.columns import add, count, equal, filter, group_count, map, max, mean, min, scale, sum
from lake.algebra.linear import Bounded, Codes, LinearCode, dct, pca, random_projection
from lake.algebra.stored import Column, column

__all__ = [
    "ADDITION",
    "STREAM_OPERATORS",
    "Bounded",
    "Codec",
    "Codes",
    "Column",
    "Homomorphism",
    "LinearCode",
    "Operator",
    "add",
    "check_homomorphism",
    "column",
    "count",
    "dct",
    "deflate",
    "dictionary",
    "entropy",
    "equal",
    "filter",
    "group_count",
    "guarantees",
    "map",
    "max",
    "mean",
    "min",
    "pca",
    "random_projection",
    "run_end",
    "scale",
    "sum",
    "zstd",
]
