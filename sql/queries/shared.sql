-- A row is a pair of datasets whose heads share parts: bytes that are stored once and used by both.
with part as (
    select distinct dataset, part.digest as digest, part.bytes as bytes
    from (select dataset, unnest(parts) as part from lake.shards)
)
select
    a.dataset as dataset,
    b.dataset as other,
    count(*) as parts,
    sum(a.bytes)::bigint as bytes
from part a
join part b on a.digest = b.digest and a.dataset < b.dataset
group by a.dataset, b.dataset
order by bytes desc, dataset, other
