select
    case when abv < 3 then 'light' when abv < 6 then 'medium' else 'strong' end as strength,
    count(*) as beers,
    max(abv) as strongest
from {{ ref('beers') }}
group by strength
