-- A paid synchronous endpoint cannot be asked what it did. How much of a shard its dead owner may have asked is known
-- from this: requests are asked in the order of their keys, never more than so many beyond those that are recorded.
ALTER TABLE shard ADD COLUMN in_flight INTEGER;  -- null: a batch, or what costs nothing
