-- Deletions are rows too. Rollback rows have no key.
select
    make_timestamp(cas // 1000)::date as day,
    event,
    count(*) as changes
from {{ source('lake', 'changelog') }}
where key is not null
group by day, event
