-- A row is a dataset: bytes that its commits wrote, and bytes that they found stored already and did not write.
select
    dataset,
    count(*) as commits,
    sum(bytes_new)::bigint as bytes_written,
    sum(bytes_reused)::bigint as bytes_saved,
    lake.share(sum(bytes_reused), sum(bytes_new) + sum(bytes_reused)) as saved
from lake.log
group by dataset
order by bytes_saved desc, dataset
