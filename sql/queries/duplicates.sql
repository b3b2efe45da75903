-- A row is a content that several shards of the heads hold: the same values of the same columns, stored once or often.
with part as (
    select
        dataset,
        shard,
        part.content as content,
        part.digest as digest,
        part.fields as fields,
        part.bytes as bytes,
        rows
    from (select dataset, shard, rows, unnest(parts) as part from lake.shards)
)
select
    content,
    any_value(fields) as fields,
    any_value(rows) as rows,
    count(*) as shards,
    count(distinct digest) as copies,
    list_sort(list(distinct dataset)) as datasets,
    max(bytes) as bytes
from part
group by content
having count(*) > 1
order by max(part.bytes) * count(*) desc, content
