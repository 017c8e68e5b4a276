-- What changed retries may cost: asking again, changed, what was answered badly and charged for. An attempt is a changed
-- retry when it has a variant, also where it is sent a second time because the first came to nothing.

-- name: changed_of
-- Those of the given requests whose next attempt is a changed retry.
SELECT key FROM request WHERE key IN (SELECT key FROM k) AND variant IS NOT NULL

-- name: retry_costs
-- What a request is expected to cost when it is asked again: what its last answer cost, and twice that where the answer
-- may be twice as long, which is then the most that it can cost.
SELECT k.key, CASE WHEN contains(r.variant, '"max_tokens"') THEN 2 ELSE 1 END * l.usd AS expected_usd
FROM k JOIN request r USING (key) LEFT JOIN (
    SELECT key, arg_max(cost_usd, seq) AS usd FROM result
    WHERE key IN (SELECT key FROM k) AND code IN ('ok', 'refused', 'truncated', 'needs_continuation') GROUP BY key
) l USING (key)

-- name: retry_spend
-- A run's answers that were charged for, as first asked and as asked again changed: how many, their cost, and how many of
-- them have none that is known. Changed ones are few, so all are summed and those taken off; joining each answer to its
-- attempt would cost as much as everything else a transaction does.
SELECT every.n - changed.n, every.usd - changed.usd, every.unknown - changed.unknown,
       changed.n, changed.usd, changed.unknown
FROM (
    SELECT count(*) AS n, coalesce(sum(cost_usd), 0) AS usd, count(*) FILTER (cost_usd IS NULL) AS unknown
    FROM result
    WHERE key IN (SELECT key FROM manifest WHERE run = $run)
      AND code IN ('ok', 'refused', 'truncated', 'needs_continuation')
) every, (
    SELECT count(*) AS n, coalesce(sum(res.cost_usd), 0) AS usd, count(*) FILTER (res.cost_usd IS NULL) AS unknown
    FROM attempt a JOIN result res ON res.shard = a.shard AND res.key = a.key
    WHERE a.variant IS NOT NULL AND a.key IN (SELECT key FROM manifest WHERE run = $run)
      AND res.code IN ('ok', 'refused', 'truncated', 'needs_continuation')
) changed

-- name: first_asks_open
-- A run's requests that wait for their first answer.
SELECT count(*) FROM request
WHERE key IN (SELECT key FROM manifest WHERE run = $run) AND state IN ('pending', 'submitted') AND variant IS NULL
  AND key NOT IN (SELECT b.key FROM borrowed b JOIN run ON run.validator = b.validator WHERE run.id = $run)

-- name: changed_out
-- A run's changed retries that are out.
SELECT key FROM request
WHERE key IN (SELECT key FROM manifest WHERE run = $run) AND state = 'submitted' AND variant IS NOT NULL
