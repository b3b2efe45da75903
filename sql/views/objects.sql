-- A row is a stored copy of a version document, a segment or a part; `reached`: a version that can be read needs it.
-- Asking for `reached` reads the documents of every version, as gc does.
create or replace view lake.objects as
select
    key,
    kind,
    digest,
    bytes,
    time::timestamptz as time,
    reached
from _objects
