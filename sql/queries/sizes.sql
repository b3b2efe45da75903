-- A row is a live dataset, the largest first: what it holds, and how much the codecs save.
select
    dataset,
    rows,
    shards,
    lake.size_text(bytes) as stored,
    lake.size_text(raw_bytes) as decoded,
    lake.share(bytes, raw_bytes) as ratio,
    time
from lake.datasets
order by bytes desc, dataset
