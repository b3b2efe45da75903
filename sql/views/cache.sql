-- A row is a file in this machine's cache: `digest` names the part it comes from, `layout` how it is kept.
create or replace view lake.cache as
select
    digest,
    layout,
    bytes,
    leases
from _cache
