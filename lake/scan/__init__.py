"""Carry a plan out: a stream of record batches, in the plan's order, from wherever the parts are.

scan          what a user holds: options, position in the epoch, the ways to look at the batches
select        which rows meet a condition
schedule      which rows are loaded together, and what each plan batch takes of them (pure)
load          rows of a shard as columns
gather        columns of a plan batch, out of what is loaded
crew          threads that work ahead of the consumer
"""

from lake.scan.scan import Scan

__all__ = ["Scan"]
