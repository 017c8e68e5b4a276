-- Statements on answers that are taken over from compatible requests.

-- name: borrowable
-- Good answers to the requests of_key, for requests that were never sent and have taken none for this validator.
SELECT k.key, k.of_key, res.shard, res.code, res.raw, res.raw_blob, res.seq
FROM k JOIN result res ON res.key = k.of_key
LEFT JOIN request r ON r.key = k.key
LEFT JOIN borrowed b ON b.key = k.key AND b.validator = $validator
WHERE res.code = 'ok' AND (res.raw IS NOT NULL OR res.raw_blob IS NOT NULL) AND b.key IS NULL
  AND (r.key IS NULL OR (r.state = 'pending' AND r.attempts = 0))

-- name: borrow_verdicts
-- The verdicts of what is about to be borrowed; what was sent or taken meanwhile is left as it is.
INSERT INTO validation
SELECT k.shard, k.key, $validator, true, k.value, NULL, NULL, k.lenient
FROM k JOIN request r ON r.key = k.key
WHERE r.state = 'pending' AND r.attempts = 0
  AND NOT EXISTS (SELECT 1 FROM borrowed b WHERE b.key = k.key AND b.validator = $validator)

-- name: borrow
INSERT INTO borrowed
SELECT k.key, $validator, k.shard, k.of_key, $run, $now
FROM k JOIN request r ON r.key = k.key
WHERE r.state = 'pending' AND r.attempts = 0
  AND NOT EXISTS (SELECT 1 FROM borrowed b WHERE b.key = k.key AND b.validator = $validator)

-- name: borrowed_of_keys
SELECT b.key FROM borrowed b SEMI JOIN k ON k.key = b.key WHERE b.validator = $validator

-- name: n_borrowed
SELECT count(*) FROM borrowed b JOIN run ON run.validator = b.validator
WHERE run.id = $run AND b.key IN (SELECT key FROM manifest WHERE run = $run)
