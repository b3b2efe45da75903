-- A row is a tag of a live dataset; `time` is when its version entered the log.
create or replace view lake.tags as
select
    dataset,
    tag,
    version,
    time::timestamptz as time
from _tags
