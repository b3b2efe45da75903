-- A row is a column of a dataset's head, in schema order. Counts and bounds come from the statistics of its
-- shards, null where those do not say; bounds of long texts are cut, so they hold but need not occur.
-- `bytes` are those of the parts that hold the column, shared with the other columns of these parts.
create or replace view lake.columns as
select
    dataset,
    version,
    position,
    name,
    type,
    nulls,
    nans,
    min,
    max,
    bytes
from _columns
