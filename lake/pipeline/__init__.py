"""Pipelines: streams of Python items, made of combinators, deterministic and exactly resumable.

pipeline       what a user holds; `functions` makes pipelines of several, or of other things than a lake's rows
node           a pipeline before it runs: a graph of frozen parameters
stage          a pipeline that runs: iterators with next, state and restore, one for each node
map, filter... one module for each combinator or small family, with its node and its stage
call, ahead    calls of the user's functions, in this thread or in others
rewind         the position before a recent item, for stages that keep items
seeds          randomness that is the same on every machine
identity       the fingerprint; `checked` what will be read
deal, lanes    what one worker takes of a stream, and how a graph is split for that; `merging` positions of ranks
"""

from lake.pipeline.checked import PipelinePlan
from lake.pipeline.functions import (
    choice,
    concat,
    from_iterable,
    mix,
    random_stream,
    select,
    zip,  # noqa: A004
    zip_with,
)
from lake.pipeline.merging import merge_states
from lake.pipeline.pipeline import Pipeline
from lake.pipeline.seeds import seeded, seeded_rng

__all__ = [
    "Pipeline",
    "PipelinePlan",
    "choice",
    "concat",
    "from_iterable",
    "merge_states",
    "mix",
    "random_stream",
    "seeded",
    "seeded_rng",
    "select",
    "zip",
    "zip_with",
]
