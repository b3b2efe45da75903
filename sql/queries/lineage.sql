-- A row is a source of a derived dataset: which version went in, which came out, and whether it is still the head.
with edge as (
    select
        dataset,
        version,
        time,
        fingerprint,
        unnest(json_keys(sources)) as source,
        sources
    from lake.derived
),
named as (
    select
        * exclude (sources),
        json_extract_string(sources, '$."' || replace(source, '"', '\"') || '"') as source_version
    from edge
)
select
    n.source,
    n.source_version,
    h.version = n.source_version as source_is_head,
    n.dataset,
    n.version,
    n.fingerprint,
    n.time
from named n
left join lake.datasets h on h.dataset = n.source
order by n.dataset, n.time, n.source
