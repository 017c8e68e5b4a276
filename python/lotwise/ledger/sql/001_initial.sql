-- The ledger as first released. Steps are append-only: a later change is a file of its own.
-- Only request.key has an index that pays (docs/decisions/0002-one-index.md); all other joins are scans by key set.

CREATE TABLE meta (name VARCHAR PRIMARY KEY, value VARCHAR NOT NULL);

CREATE TABLE spec (
    digest VARCHAR PRIMARY KEY,       -- 64 hex: SHA-256 of body
    model VARCHAR NOT NULL,           -- provider:model
    body VARCHAR NOT NULL,            -- RFC 8785 JSON of all that can change an answer
    key_version INTEGER NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE validator (
    digest VARCHAR PRIMARY KEY,       -- 40 hex over schema, rules and check
    body VARCHAR,                     -- what a new process needs to judge by it; null where it needs the user's code
    created_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE run (
    id VARCHAR PRIMARY KEY,
    name VARCHAR,
    spec VARCHAR NOT NULL,
    validator VARCHAR NOT NULL,
    job VARCHAR NOT NULL,             -- digest of spec and manifest: the same work, whoever calls for it
    tier VARCHAR NOT NULL,
    options VARCHAR NOT NULL,         -- JSON
    prompt VARCHAR NOT NULL,          -- the template
    state VARCHAR NOT NULL,           -- open, done, stopped, canceled
    reason VARCHAR,                   -- why it was stopped
    n_rows BIGINT NOT NULL,
    n_skipped BIGINT NOT NULL,
    n_requests BIGINT NOT NULL,
    budget_usd DECIMAL(18, 9),        -- null: no limit
    created_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ
);

CREATE TABLE manifest (run VARCHAR NOT NULL, key VARCHAR NOT NULL, multiplicity INTEGER NOT NULL);

CREATE TABLE part (
    id VARCHAR NOT NULL,              -- the file parts/<id>.parquet: key, content
    n_requests INTEGER NOT NULL,
    bytes BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE request (
    key VARCHAR PRIMARY KEY,          -- 40 hex over spec digest and content
    spec VARCHAR NOT NULL,
    part VARCHAR,                     -- where the rendered content is; null once purged
    content_bytes INTEGER NOT NULL,   -- of the content inside a JSON string: what it adds to an encoded request
    state VARCHAR NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'submitted', 'answered', 'refused', 'dead_lettered')),
    live_shard VARCHAR,               -- the one live attempt there can be
    attempts INTEGER NOT NULL DEFAULT 0,  -- sent, whatever came of it
    faults INTEGER NOT NULL DEFAULT 0,    -- attempts that were billed or failed by their own fault
    resends INTEGER NOT NULL DEFAULT 0,   -- attempts that came to nothing and were not billed
    variant VARCHAR,                  -- JSON: what the next attempt changes
    why VARCHAR,                      -- why a next attempt is allowed, written before it is sent
    due_at TIMESTAMPTZ,               -- no attempt before this time
    reason VARCHAR,                   -- what the last attempt came to, when it was no answer
    CHECK ((state = 'submitted') = (live_shard IS NOT NULL))
);

CREATE TABLE shard (
    id VARCHAR PRIMARY KEY,           -- 16 hex, made by us
    run VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    spec VARCHAR NOT NULL,
    provider VARCHAR NOT NULL,
    account VARCHAR NOT NULL,         -- fingerprint, never a credential
    purpose VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    owner VARCHAR,                    -- who acts on it now
    lease_until TIMESTAMPTZ,          -- by our clock; after it anybody may take over
    batch_id VARCHAR,                 -- the provider's
    provider_state VARCHAR,           -- the provider's word at the last look
    n_requests INTEGER NOT NULL,
    bytes BIGINT NOT NULL,
    n_results INTEGER,
    n_duplicates INTEGER,
    n_unknown INTEGER,
    n_unreadable INTEGER,
    reserved_usd DECIMAL(18, 9),
    cost_usd DECIMAL(18, 9),
    reason VARCHAR,
    intended_at TIMESTAMPTZ NOT NULL,
    creating_at TIMESTAMPTZ,
    submitted_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ,
    collected_at TIMESTAMPTZ,
    polled_at TIMESTAMPTZ
);

CREATE TABLE attempt (
    key VARCHAR NOT NULL,
    n INTEGER NOT NULL,               -- 1 for the first
    shard VARCHAR NOT NULL,
    purpose VARCHAR NOT NULL,
    variant VARCHAR,
    why VARCHAR NOT NULL              -- first, or the reason that allows another
);

CREATE SEQUENCE result_seq;
CREATE TABLE result (                 -- append-only
    seq BIGINT NOT NULL DEFAULT nextval('result_seq'),
    shard VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    code VARCHAR NOT NULL,
    detail VARCHAR,
    raw VARCHAR USING COMPRESSION zstd,   -- the provider's line, verbatim
    raw_blob BLOB,                        -- the same, where it is not UTF-8
    finish_reason VARCHAR,
    model_revision VARCHAR,
    input_tokens BIGINT,
    cache_read_tokens BIGINT,
    cache_write_tokens BIGINT,
    output_tokens BIGINT,
    cost_usd DECIMAL(18, 9),
    recorded_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE stray (                  -- append-only: lines that answer nothing we asked for, or answer it twice
    shard VARCHAR NOT NULL,
    why VARCHAR NOT NULL,             -- unknown, duplicate, unreadable
    custom_id VARCHAR,
    line_digest VARCHAR NOT NULL,
    raw VARCHAR USING COMPRESSION zstd,
    raw_blob BLOB,
    recorded_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE validation (             -- made again from result at no cost
    shard VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    validator VARCHAR NOT NULL,
    ok BOOLEAN NOT NULL,
    value VARCHAR USING COMPRESSION zstd, -- JSON of the parsed answer; null unless ok
    code VARCHAR,                     -- null when ok
    faults VARCHAR,                   -- JSON: paths and kinds, no values
    lenient BOOLEAN NOT NULL
);

CREATE TABLE reservation (
    shard VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    reserved_usd DECIMAL(18, 9) NOT NULL,
    settled_usd DECIMAL(18, 9),       -- null while it is open
    reserved_at TIMESTAMPTZ NOT NULL,
    settled_at TIMESTAMPTZ
);

CREATE SEQUENCE event_seq;
CREATE TABLE event (                  -- append-only, one a shard move
    seq BIGINT NOT NULL DEFAULT nextval('event_seq'),
    recorded_at TIMESTAMPTZ NOT NULL,
    shard VARCHAR NOT NULL,
    run VARCHAR NOT NULL,
    from_state VARCHAR NOT NULL,
    to_state VARCHAR NOT NULL,
    note VARCHAR
);
