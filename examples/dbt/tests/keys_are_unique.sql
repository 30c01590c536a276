-- dbt fails if a test returns rows.
select key, collection, count(*) as documents
from {{ ref('beers') }}
group by key, collection
having count(*) > 1
