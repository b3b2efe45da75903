-- A row is a live dataset: how many bytes of its head this machine's cache holds.
with part as (
    select distinct dataset, part.digest as digest, part.bytes as bytes
    from (select dataset, unnest(parts) as part from lake.shards)
),
held as (
    select distinct digest from lake.cache
)
select
    p.dataset,
    count(h.digest) as parts_cached,
    count(*) as parts,
    lake.share(sum(p.bytes) filter (where h.digest is not null), sum(p.bytes)) as share
from part p
left join held h using (digest)
group by p.dataset
order by p.dataset
