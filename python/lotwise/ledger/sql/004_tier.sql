-- A shard says itself which way it was sent: a run may send some of its requests in batches and some interactively.

ALTER TABLE shard ADD COLUMN tier VARCHAR;  -- batch or interactive

UPDATE shard SET tier = run.tier FROM run WHERE run.id = shard.run;
