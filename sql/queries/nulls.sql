-- A row is a column with nulls or NaNs in the head of its dataset, the emptiest first.
select
    c.dataset,
    c.name,
    c.type,
    c.nulls,
    lake.share(c.nulls, d.rows) as null_share,
    c.nans
from lake.columns c
join lake.datasets d using (dataset)
where c.nulls > 0 or c.nans > 0
order by null_share desc nulls last, c.dataset, c.name
