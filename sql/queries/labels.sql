-- A row is a value of one column of a dataset, the most frequent first, with its share of the rows.
-- $dataset varchar: the dataset's name, or a version of it (birds@v1)
-- $column varchar: the column, such as label
with chosen as (
    select columns(lambda c: c = $column) as value
    from query_table($dataset)
)
select
    value,
    count(*) as rows,
    lake.share(count(*), sum(count(*)) over ()) as share
from chosen
group by value
order by rows desc, value
