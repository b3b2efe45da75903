-- A row is a version of one dataset, oldest first: what it holds, and how much more that is than before it.
-- $dataset varchar: the dataset's name
select
    seq,
    version,
    rows,
    rows - lag(rows, 1, 0) over (order by seq) as rows_more,
    bytes,
    bytes - lag(bytes, 1, 0) over (order by seq) as bytes_more,
    shards,
    time
from lake.versions
where dataset = $dataset
order by seq
