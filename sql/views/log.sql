-- A row is a log entry, newest first within a dataset; datasets that were removed are there too.
create or replace view lake.log as
select
    dataset,
    seq,
    version,
    parent,
    operation,
    time::timestamptz as time,
    author,
    message,
    txn,
    born,
    rows_added,
    rows_removed,
    bytes_new,
    bytes_reused
from _log
