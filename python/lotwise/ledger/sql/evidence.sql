-- Statements on lots, draws, samples and inspections. All of these tables are append-only.

-- name: insert_lots
INSERT INTO lot SELECT k.id, $family, $job, $validator, $run, $scheme, $by_column, k.label, $now FROM k
WHERE k.id NOT IN (SELECT id FROM lot)

-- name: insert_lot_members
-- What a process that was killed wrote of the same lots already is not written again.
INSERT INTO lot_member SELECT k.lot, k.key, k.multiplicity FROM k
WHERE NOT EXISTS (SELECT 1 FROM lot_member m WHERE m.lot = k.lot AND m.key = k.key)

-- name: lots_of_family
SELECT * FROM lot WHERE family = $family ORDER BY label NULLS FIRST, id

-- name: lots_by_id
SELECT lot.* FROM lot SEMI JOIN k ON k.id = lot.id ORDER BY label NULLS FIRST, id

-- name: all_lots
SELECT id, family, scheme, run FROM lot

-- name: lot_answers
-- Every request of a family's lots: whether it is open, and the shard of its earliest valid answer.
WITH member AS (
    SELECT NULL::VARCHAR AS label, key, multiplicity FROM manifest WHERE $scheme = 'run' AND run = $run
    UNION ALL
    -- The shard that a request was first sent in. A shard that nobody worked on leaves no attempt behind. What was taken
    -- over from a compatible request belongs where that was answered.
    SELECT coalesce(b.shard, a.shard), m.key, m.multiplicity
    FROM manifest m LEFT JOIN attempt a ON a.key = m.key AND a.n = 1
    LEFT JOIN (SELECT key, shard FROM borrowed WHERE validator = $validator) b ON b.key = m.key
    WHERE $scheme = 'shard' AND m.run = $run AND coalesce(b.shard, a.shard) IS NOT NULL
    UNION ALL
    SELECT l.label, m.key, m.multiplicity FROM lot_member m JOIN lot l ON l.id = m.lot
    WHERE $scheme = 'by' AND l.family = $family
)
SELECT m.label, m.key, m.multiplicity::INTEGER AS multiplicity, v.shard AS stratum,
       v.key IS NULL AND coalesce(r.state IN ('pending', 'submitted'), true) AS is_open
FROM member m LEFT JOIN request r USING (key)
LEFT JOIN (
    SELECT v.key, arg_min(v.shard, coalesce(res.seq, 0)) AS shard
    FROM validation v LEFT JOIN result res ON res.shard = v.shard AND res.key = v.key
    WHERE v.validator = $validator AND v.ok GROUP BY v.key
) v ON v.key = m.key

-- name: first_shards
-- The shard that each request of a run was first sent in.
SELECT m.key, coalesce(b.shard, a.shard) AS shard FROM (SELECT DISTINCT key FROM manifest WHERE run = $run) m
LEFT JOIN attempt a ON a.key = m.key AND a.n = 1
LEFT JOIN (SELECT b.key, b.shard FROM borrowed b JOIN run ON run.validator = b.validator WHERE run.id = $run) b
    ON b.key = m.key
WHERE coalesce(b.shard, a.shard) IS NOT NULL

-- name: draws
-- The latest draw of each lot of a family.
SELECT d.lot AS lot_id, d.n, d.population, d.plan_kind, d.plan_n, d.plan_c, d.aql, d.bad_limit AS "limit",
       d.confidence, d.margin, d.accept_at_aql, d.accept_at_limit, d.seed, d.drawn_at, d.n_rows, d.n_unique,
       d.n_invalid
FROM draw d SEMI JOIN k ON k.id = d.lot
WHERE d.n = (SELECT max(n) FROM draw e WHERE e.lot = d.lot)

-- name: draws_of_family
SELECT d.lot AS lot_id, d.n, d.population, d.aql, d.bad_limit AS "limit", d.confidence, d.margin,
       (SELECT count(*) FROM inspection i WHERE i.lot = d.lot AND i.draw = d.n) AS n_inspected
FROM draw d JOIN lot l ON l.id = d.lot
WHERE l.family = $family AND d.n = (SELECT max(n) FROM draw e WHERE e.lot = d.lot)

-- name: insert_draws
-- A lot that another process has drawn meanwhile keeps that draw.
INSERT INTO draw SELECT k.lot_id, k.n, k.n_rows, k.n_unique, k.n_invalid, k.population, k.plan_kind, k.plan_n, k.plan_c,
       k.aql, k."limit", k.confidence, k.margin, k.accept_at_aql, k.accept_at_limit, k.seed, $now
FROM k WHERE k.n = 1 + coalesce((SELECT max(n) FROM draw d WHERE d.lot = k.lot_id), 0)

-- name: insert_sample
-- The draw may be another process's, which saw other answers or none: then so is the sample.
INSERT INTO sample SELECT lot_id, n, key, rank, stratum, weight, multiplicity, answer_digest FROM k
WHERE NOT EXISTS (SELECT 1 FROM sample s WHERE s.lot = k.lot_id AND s.draw = k.n)
  AND EXISTS (SELECT 1 FROM draw d WHERE d.lot = k.lot_id AND d.n = k.n AND d.plan_n > 0)

-- name: sample
-- What was drawn from lots in their latest draw, in the order of looking.
SELECT s.lot AS lot_id, s.draw, s.key, s.rank, s.stratum, s.weight, s.multiplicity, s.answer_digest
FROM sample s SEMI JOIN k ON k.id = s.lot
WHERE s.draw = (SELECT max(n) FROM draw d WHERE d.lot = s.lot)
ORDER BY s.lot, s.rank

-- name: inspections
-- What people said of the answers of lots since their latest draw.
SELECT i.seq, i.lot AS lot_id, i.key, i.answer_digest, i.verdict, i.inspector, i.inspected_at, i.recorded_at
FROM inspection i SEMI JOIN k ON k.id = i.lot
WHERE i.kind = 'person' AND i.draw = (SELECT max(n) FROM draw d WHERE d.lot = i.lot)

-- name: insert_inspections
INSERT INTO inspection (lot, draw, key, answer_digest, verdict, inspector, kind, inspected_at, note, recorded_at)
SELECT k.lot_id, k.draw, k.key, k.answer_digest, k.verdict, k.inspector, 'person', k.inspected_at, k.note, $now FROM k
ORDER BY k.place

-- name: lot_keys
-- Which of the given pairs of lot and key belong together.
SELECT k.lot_id, k.key FROM k JOIN lot l ON l.id = k.lot_id
WHERE (l.scheme = 'by' AND EXISTS (SELECT 1 FROM lot_member m WHERE m.lot = l.id AND m.key = k.key))
   OR (l.scheme <> 'by' AND EXISTS (SELECT 1 FROM manifest m WHERE m.run = l.run AND m.key = k.key))

-- name: answers_of_keys
-- Each key's earliest answer that is valid under a validator.
SELECT v.key, arg_min(v.value, coalesce(res.seq, 0)) AS value
FROM validation v SEMI JOIN k ON k.key = v.key LEFT JOIN result res ON res.shard = v.shard AND res.key = v.key
WHERE v.validator = $validator AND v.ok GROUP BY v.key

-- name: parts_of_keys
SELECT r.key, coalesce(r.part, '') AS part FROM request r SEMI JOIN k ON k.key = r.key
