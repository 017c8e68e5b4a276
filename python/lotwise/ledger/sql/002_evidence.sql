-- Evidence: lots, the plan and sample drawn from each, what inspectors saw, and golden rows with the gates they keep.
-- lot, lot_member, draw, sample and inspection are append-only: a lot that is drawn anew gets another draw.

CREATE TABLE lot (
    id VARCHAR PRIMARY KEY,
    family VARCHAR NOT NULL,          -- one way of parting one job's rows into lots, under one validator
    job VARCHAR NOT NULL,
    validator VARCHAR NOT NULL,       -- says which answers are valid, so what the population is
    run VARCHAR NOT NULL,             -- the run that named it first; its manifest holds the rows of run and shard lots
    scheme VARCHAR NOT NULL,          -- run, shard, by
    by_column VARCHAR,                -- the column of scheme by
    label VARCHAR,                    -- the shard's id or the group's value as text; null for a run or a null group
    opened_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE lot_member (             -- scheme by only: a key may have rows in several groups
    lot VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    multiplicity INTEGER NOT NULL
);

CREATE TABLE draw (                   -- a closed lot: what it holds and the rule, written before the first verdict
    lot VARCHAR NOT NULL,
    n INTEGER NOT NULL,               -- 1, and one more each time the lot was closed or planned anew
    n_rows BIGINT NOT NULL,
    n_unique BIGINT NOT NULL,
    n_invalid BIGINT NOT NULL,        -- distinct requests that ended without a valid answer
    population BIGINT NOT NULL,       -- distinct valid answers
    plan_kind VARCHAR NOT NULL,       -- inspection, or none where there is nothing to look at
    plan_n BIGINT NOT NULL,
    plan_c BIGINT,                    -- bad answers up to which the lot is released; null where there is no plan
    aql DOUBLE NOT NULL,
    bad_limit DOUBLE NOT NULL,
    confidence DOUBLE NOT NULL,
    margin DOUBLE NOT NULL,
    accept_at_aql DOUBLE,
    accept_at_limit DOUBLE,
    seed BIGINT NOT NULL,
    drawn_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE sample (
    lot VARCHAR NOT NULL,
    draw INTEGER NOT NULL,
    key VARCHAR NOT NULL,
    rank INTEGER NOT NULL,            -- the order of looking, from 1
    stratum VARCHAR NOT NULL,         -- the shard of the answer, or `small` for shards too small to be strata
    weight DOUBLE NOT NULL,           -- answers of the stratum for each one drawn from it
    multiplicity INTEGER NOT NULL,    -- rows that share the answer
    answer_digest VARCHAR NOT NULL    -- 16 hex: SHA-256 of the validated value's text
);

CREATE SEQUENCE inspection_seq;
CREATE TABLE inspection (
    seq BIGINT NOT NULL DEFAULT nextval('inspection_seq'),
    lot VARCHAR NOT NULL,
    draw INTEGER NOT NULL,
    key VARCHAR NOT NULL,
    answer_digest VARCHAR NOT NULL,
    verdict VARCHAR NOT NULL,         -- bad, good, unsure
    inspector VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,            -- person, golden, judge
    inspected_at TIMESTAMPTZ NOT NULL,
    note VARCHAR,
    recorded_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE golden (set_digest VARCHAR NOT NULL, key VARCHAR NOT NULL, answer VARCHAR NOT NULL);

CREATE TABLE gate (
    spec VARCHAR NOT NULL,
    set_digest VARCHAR NOT NULL,
    threshold DOUBLE NOT NULL,
    state VARCHAR NOT NULL,           -- passed, failed
    n BIGINT NOT NULL,
    agreed BIGINT NOT NULL,
    lower DOUBLE,
    invalid_rate DOUBLE,
    run VARCHAR NOT NULL,
    decided_at TIMESTAMPTZ NOT NULL
);
