-- What a shard held when it was given up after its create call may have been made. If its batch comes late after all, the
-- shard is opened again with just these attempts: the provider charges for what it answers of them.

CREATE TABLE given_up (
    shard VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    purpose VARCHAR NOT NULL,
    variant VARCHAR
);

-- Nothing was kept of shards that were given up before, so their batches cannot be followed.
UPDATE orphan SET state = 'absent' WHERE state IN ('watched', 'sought') OR state = 'found' AND batch_id IS NULL;
UPDATE orphan SET state = 'uncanceled' WHERE state = 'found';
