-- A row is a version in the log of a live dataset, newest first within it; expired ones are not there.
-- A version that the log names twice (a rollback) is there twice, with both seqs.
create or replace view lake.versions as
select
    dataset,
    seq,
    version,
    data,
    rows,
    shards,
    bytes,
    raw_bytes,
    time::timestamptz as time,
    meta::json as meta,
    recipe::json as recipe
from _versions
