-- What must hold in a ledger at any moment, also while a run is under way. Each check returns the `id` of what breaks it:
-- a key, a shard, a run or a digest, never content. The first comment line of each says what holds.

-- name: tables
SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY table_name

-- name: purged
SELECT name FROM meta WHERE name IN ('content_purged_at', 'values_purged_at')

-- name: specs
SELECT digest, model, body, key_version FROM spec ORDER BY digest

-- name: part_ids
SELECT id, n_requests FROM part ORDER BY created_at, id

-- name: part_requests
-- What the ledger says of the requests in a part's file `k`, and of those that it looks for there.
SELECT r.key, r.spec, r.content_bytes, r.part = $part AS here
FROM request r WHERE r.part = $part OR r.key IN (SELECT key FROM k)

-- name: check_request_states
-- each request is in a legal state
SELECT key AS id FROM request
WHERE state NOT IN ('pending', 'submitted', 'answered', 'refused', 'dead_lettered')
   OR attempts < 0 OR faults < 0 OR resends < 0 OR (state = 'dead_lettered' AND reason IS NULL)

-- name: check_request_unique
-- each request is there once
SELECT key AS id FROM request GROUP BY key HAVING count(*) > 1

-- name: check_live_shard
-- a request has a live shard exactly when it is submitted, and that shard is open
SELECT r.key AS id FROM request r LEFT JOIN shard s ON s.id = r.live_shard
WHERE (r.state = 'submitted') <> (r.live_shard IS NOT NULL)
   OR (r.live_shard IS NOT NULL AND (s.id IS NULL OR s.state IN ('collected', 'rejected', 'lost')))

-- name: check_live_attempt
-- a submitted request has one attempt in its live shard, its latest but for those of batches that came late
SELECT r.key AS id FROM request r
LEFT JOIN (SELECT key, shard, count(*) AS times, max(n) AS n FROM attempt GROUP BY key, shard) a
    ON a.key = r.key AND a.shard = r.live_shard
LEFT JOIN (SELECT key, max(n) AS n FROM attempt WHERE why <> 'given_up' GROUP BY key) latest ON latest.key = r.key
WHERE r.live_shard IS NOT NULL AND (a.times IS NULL OR a.times <> 1 OR a.n IS DISTINCT FROM latest.n)

-- name: check_attempt_numbers
-- the attempts of a request are numbered from 1 to its count, without gaps
SELECT coalesce(r.key, a.key) AS id
FROM request r FULL JOIN (
    SELECT key, count(*) AS times, count(DISTINCT n) AS numbers, min(n) AS low, max(n) AS high FROM attempt GROUP BY key
) a ON a.key = r.key
WHERE r.key IS NULL OR r.attempts <> coalesce(a.times, 0)
   OR (a.key IS NOT NULL AND (a.numbers <> a.times OR a.low <> 1 OR a.high <> a.times))

-- name: check_attempt_reasons
-- every attempt after a request's first has a reason, written before it was sent
SELECT key AS id FROM attempt WHERE n > 1 AND why = 'first'

-- name: check_charged_once
-- a second charge of a request has a reason other than 'first'
SELECT key AS id FROM (
    SELECT a.key, a.why, row_number() OVER (PARTITION BY a.key ORDER BY a.n, r.seq) AS charge
    FROM attempt a JOIN result r ON r.shard = a.shard AND r.key = a.key
    WHERE r.code IN ('ok', 'refused', 'truncated', 'needs_continuation')
) WHERE charge > 1 AND why = 'first'

-- name: check_shard_attempts
-- a shard has as many attempts as requests, or none when it was never worked on
SELECT s.id FROM shard s LEFT JOIN (SELECT shard, count(*) AS n FROM attempt GROUP BY shard) a ON a.shard = s.id
WHERE coalesce(a.n, 0) <> CASE WHEN s.state IN ('lost', 'rejected') THEN 0 ELSE s.n_requests END

-- name: check_attempt_shards
-- each attempt belongs to a shard
SELECT DISTINCT shard AS id FROM attempt ANTI JOIN shard ON shard.id = attempt.shard

-- name: check_shard_runs
-- each shard belongs to a run of its job and spec
SELECT s.id FROM shard s LEFT JOIN run r ON r.id = s.run
WHERE r.id IS NULL OR r.job <> s.job OR r.spec <> s.spec

-- name: check_result_attempts
-- each result belongs to an attempt
SELECT DISTINCT r.key AS id FROM result r ANTI JOIN attempt a ON a.shard = r.shard AND a.key = r.key

-- name: check_result_once
-- a shard has at most one result of a request
SELECT DISTINCT key AS id FROM result GROUP BY shard, key HAVING count(*) > 1

-- name: check_result_order
-- results have an order of their own
SELECT DISTINCT key AS id FROM (SELECT key, count(*) OVER (PARTITION BY seq) AS times FROM result) WHERE times > 1

-- name: check_result_raw
-- each result has its raw line, as text or as bytes, unless it was purged
SELECT key AS id FROM result
WHERE (raw IS NOT NULL AND raw_blob IS NOT NULL)
   OR (raw IS NULL AND raw_blob IS NULL AND NOT EXISTS (SELECT 1 FROM meta WHERE name = 'content_purged_at'))

-- name: check_result_ids
-- a raw line carries the id of the shard and key that it is stored for
SELECT key AS id FROM (
    SELECT key, shard, json_extract_string(raw, '$.custom_id') AS custom_id
    FROM result WHERE raw IS NOT NULL AND json_valid(raw)
) WHERE custom_id IS NOT NULL AND custom_id <> concat(shard, '-', key)

-- name: check_answered
-- an answered request has a charged result, a refused one a refusal
SELECT r.key AS id FROM request r
WHERE (r.state = 'answered' AND r.key NOT IN (
        SELECT key FROM result WHERE code IN ('ok', 'refused', 'truncated', 'needs_continuation')))
   OR (r.state = 'refused' AND r.key NOT IN (SELECT key FROM result WHERE code = 'refused'))

-- name: check_validation_results
-- each verdict is on a stored result, its own or one that was taken over, once a validator
SELECT DISTINCT v.key AS id FROM validation v ANTI JOIN result r ON r.shard = v.shard AND r.key = v.key
ANTI JOIN borrowed b ON b.shard = v.shard AND b.key = v.key AND b.validator = v.validator
UNION
SELECT key FROM validation GROUP BY shard, key, validator HAVING count(*) > 1

-- name: check_borrowed
-- what was taken over is a stored good answer to another request, taken once for a validator, which found it valid
SELECT b.key AS id FROM borrowed b
LEFT JOIN result r ON r.shard = b.shard AND r.key = b.of_key
LEFT JOIN validation v ON v.shard = b.shard AND v.key = b.key AND v.validator = b.validator AND v.ok
WHERE r.key IS NULL OR r.code <> 'ok' OR v.key IS NULL OR b.of_key = b.key
UNION
SELECT key FROM borrowed GROUP BY key, validator HAVING count(*) > 1

-- name: check_validation_values
-- a valid answer has a value unless it was purged, an invalid one a code and no value
SELECT DISTINCT key AS id FROM validation
WHERE (ok AND (code IS NOT NULL
            OR (value IS NULL AND NOT EXISTS (SELECT 1 FROM meta WHERE name = 'values_purged_at'))))
   OR (NOT ok AND (code IS NULL OR value IS NOT NULL))

-- name: check_event_chain
-- the moves of a shard are legal and follow one another, from planned to the state that it is in
SELECT DISTINCT coalesce(s.id, e.shard) AS id FROM shard s FULL JOIN (
    SELECT shard, from_state, to_state,
           lag(to_state, 1, 'planned') OVER (PARTITION BY shard ORDER BY seq) AS before,
           lead(seq) OVER (PARTITION BY shard ORDER BY seq) IS NULL AS is_last,
           (from_state, to_state) IN (SELECT (origin, target) FROM legal) AS is_legal
    FROM event
) e ON e.shard = s.id
WHERE s.id IS NULL OR e.shard IS NULL OR e.from_state <> e.before OR NOT e.is_legal
   OR (e.is_last AND e.to_state <> s.state)

-- name: check_reservations
-- each shard that may cost money has one reservation, settled exactly when it can cost no more, at what it cost
-- (at more where some attempts may have been charged unseen; one that was given up can cost while a batch of it may come)
SELECT DISTINCT coalesce(s.id, r.shard) AS id
FROM shard s FULL JOIN (SELECT *, count(*) OVER (PARTITION BY shard) AS times FROM reservation) r ON r.shard = s.id
WHERE s.id IS NULL
   OR (r.shard IS NULL AND s.reserved_usd IS NOT NULL)
   OR (r.shard IS NOT NULL AND (
        r.times <> 1 OR r.job <> s.job OR r.reserved_usd IS DISTINCT FROM s.reserved_usd
        OR (s.state IN ('collected', 'rejected', 'lost') AND s.id NOT IN (
            SELECT o.shard FROM orphan o JOIN shard l ON l.id = o.shard
            WHERE l.state = 'lost' AND o.state IN ('watched', 'sought', 'found'))) <> (r.settled_usd IS NOT NULL)
        OR (s.state IN ('rejected', 'lost') AND r.settled_usd <> 0)
        OR (s.state = 'collected' AND r.settled_usd < coalesce(s.cost_usd, 0))
        OR (s.state = 'collected' AND r.settled_usd > coalesce(s.cost_usd, 0) AND s.id NOT IN (
            SELECT a.shard FROM attempt a JOIN shard c ON c.id = a.shard
            LEFT JOIN result x ON x.shard = a.shard AND x.key = a.key
            WHERE x.cost_usd IS NULL OR x.recorded_at > c.collected_at))))

-- name: check_reserved_enough
-- no shard cost more than was reserved for it
SELECT shard AS id FROM reservation WHERE settled_usd > reserved_usd

-- name: check_shard_costs
-- the cost of a collected shard is the sum of its results' costs, its counts are theirs
SELECT s.id FROM shard s
LEFT JOIN (SELECT shard, sum(cost_usd) AS cost, count(*) AS n FROM result GROUP BY shard) r ON r.shard = s.id
WHERE s.state = 'collected'
  AND ((s.cost_usd IS NOT NULL AND s.cost_usd <> r.cost) OR coalesce(r.n, 0) > s.n_requests)

-- name: check_manifests
-- a run expects as many requests and rows as its manifest holds, each once, and the ledger has them
SELECT run.id FROM run LEFT JOIN (
    SELECT m.run, count(*) AS n, count(DISTINCT m.key) AS keys, sum(m.multiplicity) AS n_rows, min(m.multiplicity) AS low,
           count(r.key) AS held
    FROM manifest m LEFT JOIN request r USING (key) GROUP BY m.run
) m ON m.run = run.id
WHERE coalesce(m.n, 0) <> run.n_requests OR coalesce(m.keys, 0) <> run.n_requests
   OR coalesce(m.n_rows, 0) <> run.n_rows - run.n_skipped OR coalesce(m.low, 1) < 1
   OR coalesce(m.held, 0) <> run.n_requests

-- name: check_run_references
-- each run has its spec and its validator, and a state
SELECT id FROM run
WHERE spec NOT IN (SELECT digest FROM spec) OR validator NOT IN (SELECT digest FROM validator)
   OR state NOT IN ('open', 'done', 'stopped', 'canceled')

-- name: check_request_specs
-- each request that was ever sent has its spec
SELECT DISTINCT spec AS id FROM request WHERE attempts > 0 AND spec NOT IN (SELECT digest FROM spec)

-- name: check_request_parts
-- each request says in which part its content lies, unless it was purged
SELECT key AS id FROM request
WHERE (part IS NOT NULL AND part NOT IN (SELECT id FROM part))
   OR (part IS NULL AND NOT EXISTS (SELECT 1 FROM meta WHERE name = 'content_purged_at'))

-- name: check_strays
-- each stray line belongs to a shard and says what is strange
SELECT DISTINCT shard AS id FROM stray
WHERE shard NOT IN (SELECT id FROM shard) OR why NOT IN ('unknown', 'duplicate', 'unreadable')

-- name: check_lots
-- each lot belongs to a run of its job, has a scheme, and its members are requests that the ledger has
SELECT l.id FROM lot l LEFT JOIN run r ON r.id = l.run
WHERE r.id IS NULL OR r.job <> l.job OR l.scheme NOT IN ('run', 'shard', 'by') OR (l.scheme = 'by') <> (l.by_column IS NOT NULL)
UNION
SELECT m.lot FROM lot_member m JOIN lot l ON l.id = m.lot
WHERE m.multiplicity < 1 OR NOT EXISTS (SELECT 1 FROM request r WHERE r.key = m.key)

-- name: check_draws
-- each draw belongs to a lot, is numbered, and its counts add up
SELECT d.lot AS id FROM draw d LEFT JOIN lot l ON l.id = d.lot
WHERE l.id IS NULL OR d.n < 1 OR d.population + d.n_invalid <> d.n_unique OR d.plan_n > d.population
   OR (d.plan_c IS NULL) <> (d.population = 0)
UNION
SELECT lot FROM draw GROUP BY lot HAVING count(*) <> max(n) OR count(DISTINCT n) <> count(*)

-- name: check_samples
-- each draw has the sample that it planned: so many distinct answers, ranked from 1
SELECT coalesce(d.lot, s.lot) AS id FROM draw d FULL JOIN (
    SELECT lot, draw, count(*) AS n, count(DISTINCT key) AS keys, min(rank) AS low, max(rank) AS high
    FROM sample GROUP BY lot, draw
) s ON s.lot = d.lot AND s.draw = d.n
WHERE d.lot IS NULL OR coalesce(s.n, 0) <> d.plan_n OR coalesce(s.keys, 0) <> d.plan_n
   OR (d.plan_n > 0 AND (s.low <> 1 OR s.high <> d.plan_n))

-- name: check_inspections
-- each verdict is one of the words, belongs to a draw, and was recorded after the plan was written down
SELECT DISTINCT i.lot AS id FROM inspection i LEFT JOIN draw d ON d.lot = i.lot AND d.n = i.draw
WHERE d.lot IS NULL OR i.verdict NOT IN ('bad', 'good', 'unsure') OR i.kind NOT IN ('person', 'golden', 'judge')
   OR i.recorded_at < d.drawn_at

-- name: check_golden_asks
-- each golden row is asked under a key of its own, that no run's rows share, and each golden attempt is one
SELECT a.key AS id FROM golden_ask a
WHERE a.key NOT IN (SELECT key FROM request) AND EXISTS (SELECT 1 FROM attempt t WHERE t.key = a.key)
UNION
SELECT key FROM manifest WHERE key IN (SELECT key FROM golden_ask)
UNION
SELECT key FROM attempt WHERE (purpose = 'golden') <> (key IN (SELECT key FROM golden_ask))
UNION
SELECT golden FROM golden_ask a WHERE NOT EXISTS (
    SELECT 1 FROM golden g WHERE g.set_digest = a.set_digest AND g.key = a.golden)

-- name: check_gates
-- each verdict of a gate is passed or failed, and a pass stands on as many golden rows as its threshold asks
SELECT run AS id FROM gate
WHERE state NOT IN ('passed', 'failed') OR agreed > n OR coalesce(n_invalid, 0) > coalesce(n_frame, 0)
   OR (state = 'passed' AND agreed < threshold * n - 1e-9)

-- name: check_orphans
-- each batch that was made for a shard after it was given up belongs to a shard, has a state, is known once found, and
-- is its shard's once that is open again
SELECT o.shard AS id FROM orphan o LEFT JOIN shard s ON s.id = o.shard
WHERE s.id IS NULL OR s.job <> o.job
   OR o.state NOT IN ('watched', 'sought', 'found', 'reopened', 'canceled', 'adopted', 'absent', 'uncanceled')
   OR (o.state IN ('found', 'reopened', 'canceled', 'uncanceled') AND o.batch_id IS NULL)
   OR (o.state = 'reopened' AND o.batch_id IS DISTINCT FROM s.batch_id)

-- name: check_given_up
-- what a shard held when it was given up is kept while it is so: as many requests as it had, none with an attempt in it
SELECT g.shard AS id FROM (SELECT shard, count(DISTINCT key) AS keys, count(*) AS n FROM given_up GROUP BY shard) g
LEFT JOIN shard s ON s.id = g.shard
WHERE s.id IS NULL OR s.state <> 'lost' OR g.keys <> s.n_requests OR g.n <> s.n_requests

-- name: check_shard_quality
-- what was counted of a shard is no more than it brought
SELECT q.shard AS id FROM shard_quality q LEFT JOIN shard s ON s.id = q.shard
WHERE s.id IS NULL OR q.n_bad > q.n_answered OR q.n_answered > s.n_requests
