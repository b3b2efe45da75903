-- A row is a live dataset at its head, by name.
create or replace view lake.datasets as
select
    dataset,
    version,
    seq,
    rows,
    shards,
    bytes,
    raw_bytes,
    key,
    time::timestamptz as time
from _heads
order by dataset
