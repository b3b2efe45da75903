-- A row is a set of columns that the shards of one dataset keep together, with what it takes to read them.
-- $dataset varchar: the dataset's name
select
    fields,
    codec,
    count(*) as parts,
    sum(bytes)::bigint as bytes,
    sum(raw_bytes)::bigint as raw_bytes,
    lake.share(sum(bytes), sum(raw_bytes)) as ratio
from lake.parts($dataset)
group by fields, codec
order by bytes desc, fields, codec
