-- Statements on golden rows, the canary's gate, and what is noticed of shards. All of these tables are append-only.

-- name: insert_canary
INSERT INTO canary
VALUES ($run, $spec, $set_digest, $threshold, $bad_limit, $n_frame, $mode, $answers, $exact)

-- name: canary_of_run
SELECT * FROM canary WHERE run = $run

-- name: insert_golden
INSERT INTO golden SELECT $set_digest, k.row, k.answer FROM k
WHERE NOT EXISTS (SELECT 1 FROM golden g WHERE g.set_digest = $set_digest AND g.key = k.row)

-- name: golden_rows
-- A set's rows, and where the content of their first asking lies.
SELECT g.key AS row, g.answer, a.key, coalesce(r.part, '') AS part
FROM golden g
LEFT JOIN golden_ask a ON a.golden = g.key AND a.set_digest = g.set_digest AND a.spec = $spec AND a.round = 0
LEFT JOIN request r ON r.key = a.key
WHERE g.set_digest = $set_digest ORDER BY g.key

-- name: insert_asks
INSERT INTO golden_ask SELECT k.key, $spec, $set_digest, k.row, k.round FROM k
WHERE NOT EXISTS (SELECT 1 FROM golden_ask a WHERE a.key = k.key AND a.set_digest = $set_digest)

-- name: next_rounds
-- The round in which each golden row would be asked next, whatever set it was asked for before.
SELECT g.key AS row, (coalesce(max(a.round), -1) + 1)::INTEGER AS round
FROM golden g LEFT JOIN golden_ask a ON a.golden = g.key AND a.spec = $spec
WHERE g.set_digest = $set_digest GROUP BY g.key ORDER BY round, row

-- name: pending_golden
-- Golden rows of a set that wait to be asked, in the columns of `pending`.
SELECT r.key, coalesce(r.part, '') AS part, r.content_bytes, r.due_at, r.faults, r.variant, r.why, true AS golden
FROM golden_ask a JOIN request r USING (key)
WHERE a.spec = $spec AND a.set_digest = $set_digest AND r.state = 'pending' AND (a.round = 0 OR NOT $first)
ORDER BY a.round, a.golden

-- name: golden_results
-- Every asking of a set that this process does not know yet: its state, and its first charged answer under a validator.
WITH ask AS (
    SELECT key, golden, round FROM golden_ask
    WHERE spec = $spec AND set_digest = $set_digest AND key NOT IN (SELECT key FROM k)
), first AS (
    SELECT key, arg_min(shard, seq) AS shard, arg_min(code, seq) AS code FROM result
    WHERE key IN (SELECT key FROM ask) AND code IN ('ok', 'refused', 'truncated', 'needs_continuation', 'bad_request')
    GROUP BY key
)
SELECT a.key, a.golden AS row, a.round, r.state, f.shard, s.intended_at, f.code, v.ok, v.value, v.code AS fault
FROM ask a JOIN request r ON r.key = a.key LEFT JOIN first f ON f.key = a.key LEFT JOIN shard s ON s.id = f.shard
LEFT JOIN validation v ON v.shard = f.shard AND v.key = a.key AND v.validator = $validator

-- name: canary_results
-- The same of a run's frame rows that belong to its canary.
WITH member AS (
    SELECT key FROM manifest m ANTI JOIN (SELECT key FROM borrowed WHERE validator = $validator) b USING (key)
    WHERE m.run = $run ORDER BY key LIMIT $n_frame
), first AS (
    SELECT key, arg_min(shard, seq) AS shard, arg_min(code, seq) AS code FROM result
    WHERE key IN (SELECT key FROM member) AND code IN ('ok', 'refused', 'truncated', 'needs_continuation', 'bad_request')
    GROUP BY key
)
SELECT m.key, r.state, f.code, v.ok
FROM member m JOIN request r ON r.key = m.key LEFT JOIN first f ON f.key = m.key
LEFT JOIN validation v ON v.shard = f.shard AND v.key = m.key AND v.validator = $validator

-- name: gate
-- The gate as it stands: its latest row.
SELECT * FROM gate WHERE spec = $spec AND set_digest = $set_digest AND threshold = $threshold
ORDER BY decided_at DESC, rowid DESC LIMIT 1

-- name: insert_gate
-- Only where the gate stands as $origin ('open', or 'passed' for a pass that is withdrawn).
INSERT INTO gate (spec, set_digest, threshold, state, n, agreed, lower, invalid_rate, run, decided_at,
                  n_frame, n_invalid, upper, reason)
SELECT $spec, $set_digest, $threshold, $state, $n, $agreed, $lower, $invalid_rate, $run, $now,
       $n_frame, $n_invalid, $upper, $reason
WHERE coalesce((
    SELECT state FROM gate WHERE spec = $spec AND set_digest = $set_digest AND threshold = $threshold
    ORDER BY decided_at DESC, rowid DESC LIMIT 1), 'open') = $origin

-- name: insert_quality
-- Frame rows only, without those asked again because their answer was bad: they are no sample of the rest.
INSERT INTO shard_quality
SELECT $shard, $job, $validator,
       CASE WHEN $judged THEN count(*) FILTER (WHERE first) END,
       CASE WHEN $judged THEN count(*) FILTER (WHERE first AND bad) END,
       coalesce(list_sort(list(DISTINCT model_revision) FILTER (WHERE model_revision IS NOT NULL)), [])
FROM (
    SELECT res.model_revision, a.why NOT LIKE 'changed:%' AND a.purpose = 'answer' AS first,
           res.code = 'bad_request' OR coalesce(NOT v.ok, false) AS bad
    FROM result res JOIN (SELECT key, why, purpose FROM attempt WHERE shard = $shard) a USING (key)
    LEFT JOIN validation v ON v.shard = res.shard AND v.key = res.key AND v.validator = $validator
    WHERE res.shard = $shard AND res.code IN ('ok', 'refused', 'truncated', 'needs_continuation', 'bad_request')
)

-- name: qualities
-- What a job's collected shards brought, in the order of sending.
SELECT q.shard, q.n_answered, q.n_bad, q.revisions FROM shard_quality q JOIN shard s ON s.id = q.shard
WHERE q.job = $job AND q.validator = $validator ORDER BY s.intended_at, s.id

-- name: insert_notice
INSERT INTO notice SELECT $now, $run, $job, $kind, $shard, $text
WHERE NOT EXISTS (SELECT 1 FROM notice n WHERE n.job = $job AND n.kind = $kind AND n.text = $text)

-- name: notices
SELECT * FROM notice WHERE job = $job ORDER BY recorded_at, rowid

-- name: golden_sent
-- Golden rows that a run's own shards asked; of a synchronous one those whose call came to anything.
SELECT count(*) FROM attempt a JOIN shard s ON s.id = a.shard
LEFT JOIN result x ON x.shard = a.shard AND x.key = a.key
WHERE a.purpose = 'golden' AND s.run = $run AND CASE WHEN s.tier = 'interactive'
    THEN x.key IS NOT NULL AND x.detail IS DISTINCT FROM $unsent
    ELSE s.state NOT IN ('planned', 'intended', 'lost', 'rejected') END
