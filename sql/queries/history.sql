-- A row is a step in the history of one dataset, newest first, with what it cost.
-- $dataset varchar: the dataset's name
select
    seq,
    operation,
    rows_added,
    rows_removed,
    bytes_new,
    bytes_reused,
    author,
    message,
    time
from lake.log
where dataset = $dataset
order by seq desc
