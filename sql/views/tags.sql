-- A row is a tag of a live dataset; `seq` is the log entry whose version was tagged, `time` when, `message` why.
create or replace view lake.tags as
select
    dataset,
    tag,
    version,
    seq,
    author,
    time::timestamptz as time,
    message
from _tags
