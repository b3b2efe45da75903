-- A row is a shard of a dataset's head, in row order; `start` is the number of its first row.
-- `bytes` are stored, `raw_bytes` decoded. Keys are shown as text.
create or replace view lake.shards as
select
    dataset,
    version,
    shard,
    start,
    rows,
    list_sum(list_transform(parts, lambda p: p.bytes))::bigint as bytes,
    raw_bytes,
    first_key,
    last_key,
    list_transform(parts, lambda p: {
        'digest': lower(hex(p.digest)),
        'content': lower(hex(p.content)),
        'bytes': p.bytes,
        'raw_bytes': p.raw_bytes,
        'codec': p.codec,
        'fields': p.fields
    }) as parts
from _shards
