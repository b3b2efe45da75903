-- A row is the result of a pipeline: `fingerprint` names the pipeline with its sources, `version` what
-- came out, `time` when.
create or replace view lake.derived as
select
    dataset,
    fingerprint,
    version,
    time::timestamptz as time,
    sources::json as sources
from _derived
