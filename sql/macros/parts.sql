-- A row is a part of a shard of the head of the dataset of that name: where which of its columns lie.
create or replace macro lake.parts(name) as table
select
    shard,
    rows,
    part.digest as digest,
    part.bytes as bytes,
    part.raw_bytes as raw_bytes,
    part.codec as codec,
    part.fields as fields
from (
    select shard, rows, unnest(parts) as part
    from lake.shards
    where dataset = name
)
order by shard, digest
