-- Answers that runs with reuse="compatible" took over from a request of another spec with the same messages and model.
-- The verdict stands in validation under the taking request's key; the result, and its cost, stay with the other's.

CREATE TABLE borrowed (               -- append-only: once a (key, validator), so an answer stays what it was
    key VARCHAR NOT NULL,             -- the request that takes the answer
    validator VARCHAR NOT NULL,       -- for whose runs it is taken
    shard VARCHAR NOT NULL,           -- the result that it takes: (shard, of_key)
    of_key VARCHAR NOT NULL,
    run VARCHAR NOT NULL,             -- the run that took it
    borrowed_at TIMESTAMPTZ NOT NULL
);
