-- A row is a stored object that nothing names any more, the largest first: what gc would collect in time.
select
    key,
    kind,
    bytes,
    time
from lake.objects
where not reached
order by bytes desc, key
