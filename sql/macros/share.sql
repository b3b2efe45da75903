-- What fraction of `whole` is `part`, between 0 and 1 to three digits; null if there is no whole.
create or replace macro lake.share(part, whole) as round(part / nullif(whole, 0), 3)
