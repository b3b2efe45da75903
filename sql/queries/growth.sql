-- A row is a day (UTC) on which a dataset changed: commits, rows, and bytes that were new or reused.
select
    dataset,
    time::date as day,
    count(*) as commits,
    sum(rows_added)::bigint as rows_added,
    sum(rows_removed)::bigint as rows_removed,
    sum(bytes_new)::bigint as bytes_new,
    sum(bytes_reused)::bigint as bytes_reused
from lake.log
group by dataset, day
order by dataset, day
