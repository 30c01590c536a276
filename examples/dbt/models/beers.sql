-- The JSON of each document as columns. A value is bytes: decode makes text of it.
select
    key,
    decode(value)::json ->> '$.name' as name,
    (decode(value)::json ->> '$.abv')::double as abv,
    collection,
    -- A cas is nanoseconds since 1970 where the bucket has a hybrid clock.
    make_timestamp(cas // 1000) as changed_at
from {{ source('lake', 'current') }}
