-- Batches that may have been made for a shard after it was given up: written down before anything is done about them, so
-- that a kill on the way leaves them to the next process. Each is looked for and canceled.

CREATE TABLE orphan (
    shard VARCHAR PRIMARY KEY,        -- for which it was made
    job VARCHAR NOT NULL,
    batch_id VARCHAR,                 -- the provider's; null until it is known
    state VARCHAR NOT NULL,           -- watched, sought, found; aside: canceled, adopted, absent, uncanceled
    noted_at TIMESTAMPTZ NOT NULL,
    watch_until TIMESTAMPTZ NOT NULL, -- by our clock; after it a batch that nobody has seen was never made
    looked_at TIMESTAMPTZ
);

ALTER TABLE shard ADD COLUMN called_at TIMESTAMPTZ;  -- when its create call came back without an answer
