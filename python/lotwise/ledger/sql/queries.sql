-- Every statement that changes or reads the ledger, by name. A move says from which state to which.
-- `k`, `moves`, `incoming` and the like are Arrow tables that the store registers for the one transaction.

-- name: known_keys
-- Which of the given keys the ledger has, and need no content: those to be sent whose content was purged lack it.
SELECT k.key FROM k JOIN request r USING (key) WHERE r.part IS NOT NULL OR r.state <> 'pending'

-- name: enroll
-- New requests, pending. What is there already stays as it is.
INSERT INTO request (key, spec, part, content_bytes)
SELECT k.key, $spec, $part, k.content_bytes FROM k ANTI JOIN request USING (key)

-- name: restore_content
-- The content of requests that were reopened after a purge.
UPDATE request SET part = $part WHERE key IN (SELECT key FROM k) AND part IS NULL AND state = 'pending'

-- name: insert_part
INSERT INTO part VALUES ($part, $n_requests, $bytes, $now)

-- name: insert_spec
INSERT INTO spec VALUES ($digest, $model, $body, $key_version, $now) ON CONFLICT DO NOTHING

-- name: insert_validator
INSERT INTO validator VALUES ($digest, $body, $now) ON CONFLICT DO NOTHING

-- name: insert_run
INSERT INTO run (id, name, spec, validator, job, tier, options, prompt, state, n_rows, n_skipped, n_requests,
                 budget_usd, created_at)
VALUES ($id, $name, $spec, $validator, $job, $tier, $options, $prompt, 'open', $n_rows, $n_skipped, $n_requests,
        $budget_usd, $now)

-- name: insert_manifest
INSERT INTO manifest SELECT $run, key, multiplicity FROM k

-- name: manifest_keys
SELECT DISTINCT key FROM manifest WHERE run = $run

-- name: answered_by
-- Where the last answer to each of a run's requests came from.
SELECT tier, count(*) FROM (
    SELECT r.key, arg_max(s.tier, r.seq) AS tier
    FROM result r JOIN shard s ON s.id = r.shard
    WHERE r.key IN (SELECT key FROM manifest WHERE run = $run)
      AND r.code IN ('ok', 'refused', 'truncated', 'needs_continuation')
    GROUP BY r.key)
GROUP BY tier ORDER BY tier

-- name: n_asked_with
SELECT count(DISTINCT key) FROM attempt WHERE why = $why AND key IN (SELECT key FROM manifest WHERE run = $run)

-- name: end_run
-- open -> done, stopped or canceled; an ended run may be ended again with another word
UPDATE run SET state = $state, reason = $reason, ended_at = $now WHERE id = $run

-- name: end_job
-- open -> done, for every call of the same work
UPDATE run SET state = 'done', reason = NULL, ended_at = $now WHERE job = $job AND state = 'open'

-- name: open_runs
SELECT id FROM run WHERE state = 'open' ORDER BY created_at, id

-- name: stop_runs
-- open -> stopped, for every process: the next intent of any of them is refused
UPDATE run SET state = 'stopped', reason = 'stopped:by hand', ended_at = $now WHERE state = 'open'

-- name: unfinished_runs
SELECT id, state <> 'open' AS collect_only FROM run
WHERE state = 'open' OR id IN (SELECT run FROM shard WHERE state NOT IN ('collected', 'rejected', 'lost')
    OR id IN (SELECT shard FROM orphan WHERE state IN ('watched', 'sought', 'found', 'reopened')))
ORDER BY created_at, id

-- name: reopen_run
UPDATE run SET state = 'open', reason = NULL, ended_at = NULL WHERE id = $run AND state <> 'open'

-- name: runs
SELECT run.*, spec.model FROM run JOIN spec ON spec.digest = run.spec ORDER BY created_at, id

-- name: run
SELECT run.*, spec.model, spec.body AS spec_body, validator.body AS validator_body
FROM run JOIN spec ON spec.digest = run.spec LEFT JOIN validator ON validator.digest = run.validator
WHERE run.id = $run

-- name: run_state
SELECT state, reason FROM run WHERE id = $run

-- name: stop_reason_of_job
-- The newest verdict that stopped this work, whoever ran it.
SELECT id, reason FROM run WHERE job = $job AND state = 'stopped' ORDER BY ended_at DESC LIMIT 1

-- name: pending
-- Requests of a run that may be sent now or later; what it took over from a compatible request is not asked.
SELECT r.key, coalesce(r.part, '') AS part, r.content_bytes, r.due_at, r.faults, r.variant, r.why, false AS golden
FROM manifest m JOIN request r USING (key)
ANTI JOIN (SELECT b.key FROM borrowed b JOIN run ON run.validator = b.validator WHERE run.id = $run) b USING (key)
WHERE m.run = $run AND r.state = 'pending'

-- name: claim
-- pending -> submitted, and the one live attempt is this shard's; only as it was planned, since a changed retry may cost
-- more than what was reserved
UPDATE request SET state = 'submitted', live_shard = $shard, attempts = attempts + 1
WHERE (key, coalesce(variant, '')) IN (SELECT (key, coalesce(variant, '')) FROM k)
  AND state = 'pending' AND live_shard IS NULL

-- name: insert_attempts
-- What a request was to be asked again for is no reason any more where the attempts before turned out not to count.
INSERT INTO attempt
SELECT r.key, r.attempts, $shard, CASE WHEN k.golden THEN 'golden' ELSE $purpose END, r.variant,
       CASE WHEN r.attempts = 1 THEN 'first' ELSE coalesce(r.why, 'first') END
FROM request r JOIN k USING (key) WHERE r.live_shard = $shard

-- name: insert_shard
INSERT INTO shard (id, run, job, spec, provider, account, tier, purpose, state, owner, lease_until, n_requests, bytes,
                   reserved_usd, intended_at, in_flight)
VALUES ($shard, $run, $job, $spec, $provider, $account, $tier, $purpose, 'intended', $owner, $lease_until,
        $n_requests, $bytes, $reserved_usd, $now, $in_flight)

-- name: reserve
INSERT INTO reservation (shard, job, reserved_usd, reserved_at) VALUES ($shard, $job, $reserved_usd, $now)

-- name: committed_usd
-- What a job has spent and what its open shards may still spend, and how many of them are open.
SELECT coalesce(sum(coalesce(settled_usd, reserved_usd)), 0), count(*) FILTER (WHERE settled_usd IS NULL)
FROM reservation WHERE job = $job

-- name: release_reservation
-- A shard that was given up cost nothing, unless a batch of it may still come. One that was rejected had its batch.
UPDATE reservation SET settled_usd = 0, settled_at = $now
WHERE shard = $shard AND settled_usd IS NULL
  AND shard NOT IN (SELECT o.shard FROM orphan o JOIN shard s ON s.id = o.shard
                    WHERE s.state = 'lost' AND o.state IN ('watched', 'sought', 'found'))

-- name: restore_reservation
-- ... and once it is known that one was made, it may cost all that was reserved.
UPDATE reservation SET settled_usd = NULL, settled_at = NULL
WHERE shard = $shard AND shard IN (SELECT id FROM shard WHERE state = 'lost')
  AND shard IN (SELECT shard FROM orphan WHERE state IN ('sought', 'found'))

-- name: settle_reservation
UPDATE reservation SET settled_usd = $settled_usd, settled_at = $now WHERE shard = $shard AND settled_usd IS NULL

-- name: move_shard
-- from $origin to $target, only while it is still there and still ours to move
UPDATE shard SET state = $target,
    batch_id = coalesce($batch_id, batch_id),
    called_at = coalesce($called_at, called_at),
    reason = coalesce($reason, reason),
    provider_state = coalesce($provider_state, provider_state),
    polled_at = CASE WHEN $provider_state IS NULL THEN polled_at ELSE $now END,
    lease_until = $lease_until,
    creating_at = CASE WHEN $target = 'creating' THEN $now ELSE creating_at END,
    submitted_at = CASE WHEN $target = 'submitted' THEN $now ELSE submitted_at END,
    ended_at = CASE WHEN $target = 'ended' THEN $now ELSE ended_at END,
    collected_at = CASE WHEN $target = 'collected' THEN $now ELSE collected_at END
WHERE id = $shard AND state = $origin AND owner = $owner

-- name: take_lease
-- Take a shard over: it is free, or its lease has run out, or its owner is known to be gone.
UPDATE shard SET owner = $owner, lease_until = $lease_until
WHERE id = $shard AND state = $state
  AND (owner = $owner OR owner IS NULL OR lease_until IS NULL OR lease_until <= $now OR owner = $gone)

-- name: renew_lease
UPDATE shard SET lease_until = $lease_until WHERE id = $shard AND owner = $owner

-- name: drop_lease
UPDATE shard SET lease_until = NULL WHERE id = $shard AND owner = $owner

-- name: note_poll
-- ... of a shard that is still ours, and give our lease back
UPDATE shard SET polled_at = $now, provider_state = $provider_state,
    lease_until = CASE WHEN $keeps_lease THEN lease_until END
WHERE id = $shard AND owner = $owner

-- name: event
INSERT INTO event (recorded_at, shard, run, from_state, to_state, note)
SELECT $now, id, run, $origin, $target, $note FROM shard WHERE id = $shard

-- name: shards_holding
-- Shards that hold a request of the run, or a golden row of its canary, whichever job sent them.
SELECT r.live_shard FROM manifest m JOIN request r USING (key)
ANTI JOIN (SELECT b.key FROM borrowed b JOIN run ON run.validator = b.validator WHERE run.id = $run) b USING (key)
WHERE m.run = $run AND r.live_shard IS NOT NULL
UNION
SELECT r.live_shard FROM canary c JOIN golden_ask a ON a.spec = c.spec AND a.set_digest = c.set_digest
JOIN request r ON r.key = a.key WHERE c.run = $run AND a.round = 0 AND r.live_shard IS NOT NULL

-- name: note_orphan
-- A batch may have been made for a shard that was given up. What its own maker said of it stands, and so does what was
-- done about it.
INSERT INTO orphan (shard, job, batch_id, state, noted_at, watch_until)
SELECT id, job, $batch_id, $state, $now, $watch_until FROM shard WHERE id = $shard
ON CONFLICT (shard) DO UPDATE SET
    batch_id = coalesce(excluded.batch_id, batch_id),
    state = CASE WHEN state IN ('reopened', 'canceled', 'uncanceled', 'adopted') THEN state
                 WHEN excluded.state = 'watched' AND state IN ('sought', 'found') THEN state ELSE excluded.state END,
    watch_until = greatest(excluded.watch_until, watch_until)

-- name: orphans
SELECT * FROM orphan WHERE job = $job AND state IN ('watched', 'sought', 'found', 'reopened') ORDER BY noted_at, shard

-- name: mark_orphan
UPDATE orphan SET state = $state, batch_id = coalesce($batch_id, batch_id), looked_at = $now WHERE shard = $shard

-- name: keep_given_up
INSERT INTO given_up SELECT shard, key, purpose, variant FROM attempt WHERE shard = $shard

-- name: claim_late
-- pending -> submitted: the late batch may answer what would only be asked again
UPDATE request SET state = 'submitted', live_shard = $shard FROM given_up g
WHERE g.shard = $shard AND request.key = g.key AND request.state = 'pending' AND request.live_shard IS NULL
  AND request.variant IS NOT DISTINCT FROM g.variant

-- name: count_late
-- Each request of the late batch has an attempt more; whatever is sent besides it has a reason.
UPDATE request SET attempts = attempts + 1,
    why = CASE WHEN state IN ('pending', 'submitted') AND live_shard IS DISTINCT FROM $shard THEN coalesce(why, 'late')
               ELSE why END
WHERE key IN (SELECT key FROM given_up WHERE shard = $shard)

-- name: restore_attempts
INSERT INTO attempt
SELECT r.key, r.attempts, g.shard, g.purpose, g.variant,
       CASE WHEN r.live_shard IS DISTINCT FROM g.shard THEN $why WHEN r.attempts = 1 THEN 'first'
            ELSE coalesce(r.why, 'first') END
FROM given_up g JOIN request r USING (key) WHERE g.shard = $shard

-- name: forget_given_up
DELETE FROM given_up WHERE shard = $shard

-- name: all_open_shards
SELECT * FROM shard WHERE state NOT IN ('collected', 'rejected', 'lost') ORDER BY intended_at, id

-- name: shard
SELECT * FROM shard WHERE id = $shard

-- name: batches
SELECT batch_id FROM shard WHERE batch_id IS NOT NULL AND id <> $shard

-- name: shard_keys
-- Every request that was sent in a shard, and whether this attempt is still its live one.
SELECT a.key, a.n, a.variant, r.part, r.faults, r.resends, r.live_shard = $shard AS live, a.purpose = 'golden' AS golden,
       a.key IN (SELECT key FROM result WHERE shard = $shard) AS recorded
FROM attempt a JOIN request r USING (key) WHERE a.shard = $shard

-- name: insert_results
INSERT INTO result (shard, key, code, detail, raw, raw_blob, finish_reason, model_revision, input_tokens,
                    cache_read_tokens, cache_write_tokens, output_tokens, cost_usd, recorded_at)
SELECT $shard, i.key, i.code, i.detail, i.raw, i.raw_blob, i.finish_reason, i.model_revision, i.input_tokens,
       i.cache_read_tokens, i.cache_write_tokens, i.output_tokens, i.cost_usd, $now
FROM incoming i
WHERE NOT EXISTS (SELECT 1 FROM result r WHERE r.shard = $shard AND r.key = i.key)

-- name: insert_strays
INSERT INTO stray
SELECT $shard, i.why, i.custom_id, i.line_digest, i.raw, i.raw_blob, $now FROM incoming i
WHERE NOT EXISTS (SELECT 1 FROM stray s
    WHERE s.shard = $shard AND s.line_digest = i.line_digest AND s.why = i.why)

-- name: unsettled
-- Results that were recorded for live attempts of a shard, but not yet judged and moved.
SELECT res.key, res.code, res.raw, res.raw_blob
FROM result res JOIN request r ON r.key = res.key AND r.live_shard = res.shard
WHERE res.shard = $shard

-- name: insert_validations
INSERT INTO validation SELECT v.shard, v.key, $validator, v.ok, v.value, v.fault_code, v.fault_list, v.lenient
FROM verdicts v

-- name: judged_of
-- Those of some answers that a validator has judged.
SELECT v.shard, v.key FROM validation v JOIN verdicts USING (shard, key) WHERE v.validator = $validator

-- name: settle_requests
-- submitted -> pending, answered, refused or dead_lettered; the attempt is live no more
UPDATE request SET state = m.to_state, live_shard = NULL, reason = m.reason, why = m.why, variant = m.variant,
    faults = m.faults, resends = m.resends,
    due_at = CASE WHEN m.to_state = 'pending' AND m.delay_s > 0 THEN $now + to_seconds(m.delay_s) END
FROM moves m
WHERE request.key = m.key AND request.state = 'submitted' AND request.live_shard = $shard

-- name: live_keys
SELECT key FROM request WHERE live_shard = $shard

-- name: live_requests
SELECT key, content_bytes, variant FROM request WHERE live_shard = $shard

-- name: ask_twice
-- submitted -> pending, while the shard is still open: its attempt goes on, and another is allowed with the reason
UPDATE request SET state = 'pending', live_shard = NULL, why = $why, due_at = NULL
WHERE live_shard = $shard AND state = 'submitted'

-- name: release_requests
-- submitted -> pending: the shard was never worked on; the attempt does not count
UPDATE request SET state = 'pending', live_shard = NULL, attempts = attempts - 1, reason = $reason,
    due_at = $due_at
WHERE live_shard = $shard AND state = 'submitted'

-- name: uncount_attempts
-- Requests that were asked besides a shard which turns out not to have been worked on have one attempt less.
UPDATE request SET attempts = attempts - 1
WHERE key IN (SELECT key FROM attempt WHERE shard = $shard) AND live_shard IS DISTINCT FROM $shard

-- name: renumber_attempts
UPDATE attempt SET n = attempt.n - 1,
    why = CASE WHEN attempt.n = 2 AND attempt.why <> 'given_up' THEN 'first' ELSE attempt.why END
FROM attempt gone
WHERE gone.shard = $shard AND attempt.key = gone.key AND attempt.n > gone.n

-- name: forget_attempts
-- Attempts of a shard that nobody worked on: it never arrived, or was rejected whole. Their numbers are used again.
DELETE FROM attempt WHERE shard = $shard

-- name: dead_letter
-- pending -> dead_lettered: it can never be sent as it is
UPDATE request SET state = 'dead_lettered', reason = $reason
WHERE key IN (SELECT key FROM k) AND state = 'pending'

-- name: give_up_due
-- pending -> dead_lettered: it was tried, and may not be tried again
UPDATE request SET state = $to_state, reason = $reason, why = NULL, variant = NULL
WHERE key IN (SELECT key FROM k) AND state = 'pending'

-- name: reopen
-- answered, refused or dead_lettered -> pending, because the user asked
UPDATE request SET state = 'pending', why = $why, variant = NULL, due_at = NULL, faults = 0, resends = 0
WHERE key IN (SELECT key FROM k) AND state = $origin

-- name: finish_shard
UPDATE shard SET n_results = $n_results, n_duplicates = $n_duplicates, n_unknown = $n_unknown,
    n_unreadable = $n_unreadable, cost_usd = $cost_usd WHERE id = $shard

-- name: late_cost
-- What a closed shard cost, when a process that had lost it writes down what it was answered. Its reservation was
-- settled with the upper bound of just that.
UPDATE shard SET cost_usd = r.cost
FROM (SELECT sum(cost_usd) AS cost, count(*) FILTER (
          WHERE cost_usd IS NULL AND code IN ('ok', 'refused', 'truncated', 'needs_continuation')) AS unpriced
      FROM result WHERE shard = $shard) r
WHERE id = $shard AND state = 'collected' AND r.unpriced = 0

-- name: shard_cost
SELECT sum(cost_usd), count(*) FILTER (WHERE cost_usd IS NULL AND code IN ('ok', 'refused', 'truncated', 'needs_continuation'))
FROM result WHERE shard = $shard

-- name: shard_balance
-- Requests that were sent in a shard, and those that are still in it.
SELECT (SELECT count(DISTINCT key) FROM attempt WHERE shard = $shard),
       (SELECT count(*) FROM request WHERE live_shard = $shard)

-- name: doubtful
-- Attempts of a shard that may have been charged, at a cost that is not known.
SELECT a.key, r.content_bytes, a.variant, x.key IS NOT NULL AS returned
FROM attempt a JOIN request r USING (key) LEFT JOIN result x ON x.shard = a.shard AND x.key = a.key
WHERE a.shard = $shard AND x.cost_usd IS NULL

-- name: uncertain
-- Attempts of a job that may have been charged with no answer seen: those that were followed by another for that
-- reason, those that will be, and those that are held; and the most that they can have cost.
SELECT (SELECT count(*) FROM attempt a JOIN shard s ON s.id = a.shard
        WHERE s.job = $job AND a.why IN ('uncertain', 'unreturned', 'unreadable'))
     + (SELECT count(*) FROM request r
        WHERE r.key IN (SELECT key FROM manifest WHERE run = $run)
          AND (r.state = 'pending' AND r.why IN ('uncertain', 'unreturned', 'unreadable')
            OR r.state = 'dead_lettered' AND r.reason IN ('uncertain', 'unreturned', 'unreadable'))),
       (SELECT sum(greatest(v.settled_usd - coalesce(s.cost_usd, 0), 0))
        FROM reservation v JOIN shard s ON s.id = v.shard WHERE v.job = $job AND s.state = 'collected')

-- name: unseen
-- Billed answers to requests that have been asked, which this validator has not judged.
SELECT res.key, res.code, res.raw, res.raw_blob, res.seq
FROM result res SEMI JOIN k ON k.key = res.key
ANTI JOIN (SELECT shard, key FROM validation WHERE validator = $validator) v ON v.shard = res.shard AND v.key = res.key
WHERE res.code IN ('ok', 'truncated', 'needs_continuation') AND (res.raw IS NOT NULL OR res.raw_blob IS NOT NULL)

-- name: calls_made
-- Of a run's own synchronous shards: calls that came to anything, and calls that never left.
SELECT count(*) FILTER (WHERE detail IS DISTINCT FROM $unsent), count(*) FILTER (WHERE detail = $unsent)
FROM result WHERE shard IN (SELECT id FROM shard WHERE run = $run AND tier = 'interactive')

-- name: shard_verdicts
-- How many of a shard's billed or refused answers there are, and how many of them are bad. Requests that are asked again
-- because their answer was bad are no sample of the rest, and golden rows are judged apart, so they are left out.
SELECT count(*) FILTER (WHERE res.code IN ('ok', 'refused', 'truncated', 'needs_continuation', 'bad_request')),
       count(*) FILTER (WHERE res.code = 'bad_request' OR v.ok = false)
FROM result res
LEFT JOIN validation v ON v.shard = $shard AND v.key = res.key AND v.validator = $validator
ANTI JOIN (SELECT key FROM attempt WHERE shard = $shard AND (why LIKE 'changed:%' OR purpose = 'golden')) again
    ON again.key = res.key
WHERE res.shard = $shard

-- name: unjudged
-- Billed answers to a run's requests and golden rows that this validator has not judged, and whether any other has.
SELECT res.shard, res.key, res.code, res.raw, res.raw_blob, res.seq,
       EXISTS (SELECT 1 FROM validation o WHERE o.shard = res.shard AND o.key = res.key) AS judged_before, m.golden
FROM result res
JOIN (
    SELECT key, false AS golden FROM manifest WHERE run = $run
    UNION ALL
    SELECT a.key, true FROM canary c JOIN golden_ask a ON a.spec = c.spec AND a.set_digest = c.set_digest
    WHERE c.run = $run
) m USING (key)
ANTI JOIN (SELECT shard, key FROM validation WHERE validator = $validator) v
    ON v.shard = res.shard AND v.key = res.key
WHERE res.code IN ('ok', 'truncated', 'needs_continuation') AND (res.raw IS NOT NULL OR res.raw_blob IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM request r WHERE r.key = res.key AND r.live_shard = res.shard)
LIMIT $limit

-- name: retry_answered
-- answered -> pending: an answer that nobody had judged yet is invalid, and may be tried once more, changed; unless
-- another answer to the same request is valid, it was tried so already, or that would be one attempt too many: those of
-- late batches count too
UPDATE request SET state = m.to_state, reason = m.reason, why = m.why, variant = m.variant
FROM moves m WHERE request.key = m.key AND request.state = 'answered'
  AND request.faults + (SELECT count(*) FROM attempt a WHERE a.key = m.key AND a.why = 'given_up') < $max_attempts
  AND NOT EXISTS (SELECT 1 FROM validation v WHERE v.key = m.key AND v.validator = $validator AND v.ok)
  AND request.key NOT IN (SELECT key FROM attempt WHERE variant IS NOT NULL)

-- name: counts
-- A run's distinct requests by what their row shows. Valid is what its validator says; the rest is the sending state.
-- Of those that wait to be sent: how many are due, and when the next one is. A manifest holds each key once.
SELECT CASE WHEN m.key IN (SELECT key FROM validation WHERE validator = $validator AND ok) THEN 'succeeded'
            WHEN r.state = 'answered' THEN 'invalid' ELSE r.state END AS state,
       count(*) AS n_requests, coalesce(sum(m.multiplicity), 0) AS n_rows,
       count(*) FILTER (WHERE r.state = 'pending' AND b.key IS NULL AND (r.due_at IS NULL OR r.due_at <= $now)) AS n_due,
       min(r.due_at) FILTER (WHERE r.state = 'pending' AND b.key IS NULL AND r.due_at > $now) AS next_due_at
FROM manifest m LEFT JOIN request r USING (key)
LEFT JOIN (SELECT key FROM borrowed WHERE validator = $validator) b ON b.key = m.key
WHERE m.run = $run
GROUP BY 1

-- name: waiting
-- A run's requests that are asked again later, by what went wrong, the most frequent first.
SELECT coalesce(r.reason, r.why, 'pending'), count(*) AS n, min(r.due_at)
FROM manifest m JOIN request r USING (key)
ANTI JOIN (SELECT b.key FROM borrowed b JOIN run ON run.validator = b.validator WHERE run.id = $run) b USING (key)
WHERE m.run = $run AND r.state = 'pending' AND r.due_at > $now
GROUP BY 1 ORDER BY n DESC, 1

-- name: answers
-- What each key's row shows under a validator: its state and reason, and its earliest valid answer. One that it took
-- over from a compatible request has no result of its own: it was there before any that was asked for.
SELECT k.key,
       CASE WHEN r.key IS NULL THEN 'absent' WHEN v.key IS NOT NULL THEN 'succeeded'
            WHEN r.state = 'answered' THEN 'invalid' ELSE r.state END AS state,
       CASE WHEN v.key IS NOT NULL THEN NULL ELSE coalesce(b.code, r.reason, CASE WHEN r.state = 'answered' THEN 'not_judged' END)
       END AS reason,
       CASE WHEN v.key IS NOT NULL THEN NULL ELSE b.faults END AS faults,
       d.detail,
       coalesce(r.attempts, 0) AS attempts,
       v.value
FROM k LEFT JOIN request r ON r.key = k.key
LEFT JOIN (
    SELECT v.key, arg_min(v.value, coalesce(res.seq, 0)) AS value
    FROM validation v LEFT JOIN result res ON res.shard = v.shard AND res.key = v.key
    WHERE v.validator = $validator AND v.ok AND v.key IN (SELECT key FROM k) GROUP BY v.key
) v ON v.key = k.key
LEFT JOIN (
    SELECT v.key, arg_max(v.code, res.seq) AS code, arg_max(v.faults, res.seq) AS faults
    FROM validation v JOIN result res ON res.shard = v.shard AND res.key = v.key
    WHERE v.validator = $validator AND NOT v.ok AND v.key IN (SELECT key FROM k) GROUP BY v.key
) b ON b.key = k.key AND r.state IN ('answered', 'pending')
LEFT JOIN (
    SELECT res.key, arg_max(res.detail, res.seq) AS detail
    FROM result res JOIN request q ON q.key = res.key AND q.reason = res.code
    WHERE q.state = 'dead_lettered' AND res.key IN (SELECT key FROM k) GROUP BY res.key
) d ON d.key = k.key

-- name: missing
-- Every request of a run without a valid answer, with its state and reason.
SELECT m.key, coalesce(r.state, 'absent') AS sending_state, r.reason, r.attempts, r.faults, r.resends, r.due_at, r.live_shard
FROM (SELECT DISTINCT key FROM manifest WHERE run = $run) m LEFT JOIN request r USING (key)
ANTI JOIN (SELECT DISTINCT key FROM validation WHERE validator = $validator AND ok) v USING (key)
ORDER BY m.key

-- name: shards_of_job
SELECT * FROM shard WHERE job = $job ORDER BY intended_at, id

-- name: cached_share
-- By tokens and not by requests: a long request saves more than a short one.
SELECT sum(coalesce(cache_read_tokens, 0)) / nullif(sum(input_tokens), 0)
FROM result WHERE input_tokens IS NOT NULL AND shard IN (SELECT id FROM shard WHERE job = $job)

-- name: similar_specs
SELECT digest, body FROM spec WHERE model = $model
