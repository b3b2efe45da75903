-- A row is a shard of the head of a dataset, the largest of the lake first; only the first hundred.
select
    dataset,
    shard,
    rows,
    bytes,
    raw_bytes,
    lake.share(bytes, raw_bytes) as ratio,
    len(parts) as parts,
    first_key,
    last_key
from lake.shards
order by bytes desc, dataset, shard
limit 100
