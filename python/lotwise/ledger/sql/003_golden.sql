-- The canary and golden rows: what each run must pass first, who was asked what, what shards brought, what was noticed.
-- golden.key is a golden row's own name, 40 hex of its rendered content; the key that it is asked under is in golden_ask.

ALTER TABLE gate ADD COLUMN n_frame BIGINT;       -- frame rows of the canary that were answered
ALTER TABLE gate ADD COLUMN n_invalid BIGINT;     -- those with an invalid first answer
ALTER TABLE gate ADD COLUMN upper DOUBLE;         -- exact one-sided bound of their share
ALTER TABLE gate ADD COLUMN reason VARCHAR;       -- in counts; a gate's latest row is the one that holds

CREATE TABLE canary (                 -- what a run must pass, written before the run
    run VARCHAR NOT NULL,
    spec VARCHAR NOT NULL,
    set_digest VARCHAR NOT NULL,      -- 64 hex over golden set, prompt, validator and limit
    threshold DOUBLE NOT NULL,        -- share of golden rows that must agree; 0 without golden rows
    bad_limit DOUBLE,                 -- rate of invalid answers that may be; null for no limit
    n_frame BIGINT NOT NULL,          -- the first so many requests of the run, by key
    mode VARCHAR NOT NULL,            -- on, off, override
    answers VARCHAR,                  -- JSON list of the answer columns; null without golden rows
    exact BOOLEAN NOT NULL            -- false where a function of the caller's compares
);

CREATE TABLE golden_ask (             -- one asking of a golden row, under a key of its own
    key VARCHAR NOT NULL,
    spec VARCHAR NOT NULL,            -- of the frame rows
    set_digest VARCHAR NOT NULL,
    golden VARCHAR NOT NULL,          -- golden.key
    round INTEGER NOT NULL            -- 0 for the canary, then as it rides in later shards
);

CREATE TABLE shard_quality (          -- what a collected shard brought, under the validator that judged it
    shard VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    validator VARCHAR NOT NULL,
    n_answered BIGINT,                -- first answers of frame rows; null where nobody could judge them
    n_bad BIGINT,
    revisions VARCHAR[] NOT NULL      -- model revisions that answered
);

CREATE TABLE notice (                 -- append-only: what a run was told of at once
    recorded_at TIMESTAMPTZ NOT NULL,
    run VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,            -- invalid_rate, model_revision, drift, canary
    shard VARCHAR,                    -- where it began
    text VARCHAR NOT NULL
);
