-- A byte count as a person reads it: "999 B", "1.2 GB", "60 GB".
create or replace macro lake.size_text(bytes) as (
    with scaled as (  -- to the unit in which it rounds to less than 1000
        select list_sum([(2 * bytes >= 1999 * 1000::hugeint ** i)::int for i in range(5)])::int as power
    )
    select printf(
        if(power > 0 and bytes / 1000.0 ** power < 9.95, '%.1f %s', '%.0f %s'),
        bytes / 1000.0 ** power,
        ['B', 'kB', 'MB', 'GB', 'TB', 'PB'][power + 1]
    )
    from scaled
)
