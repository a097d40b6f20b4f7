-- What became of the boundary signals of each category, and which failures ended the lost ones.
CREATE OR REPLACE TEMP VIEW synthesis_yield AS
WITH refused AS (SELECT run_id, signal_id, count(*) AS num_rejected FROM variant_rejected GROUP BY ALL)
SELECT b.run_id, b.category, count(*) AS num_signals, count(t.signal_id) AS num_synthesized, count(x.signal_id) AS num_failed,
    count(*) - count(t.signal_id) - count(x.signal_id) AS num_open,
    count(t.signal_id) / count(*) AS yield_frac, avg(coalesce(t.num_attempts, x.num_attempts)) AS mean_attempts,
    coalesce(sum(r.num_rejected), 0)::BIGINT AS num_rejected, histogram(x.failure) AS failures
FROM boundary_detected b
LEFT JOIN task_synthesized t ON t.run_id = b.run_id AND t.signal_id = b.signal_id
LEFT JOIN synthesis_failed x ON x.run_id = b.run_id AND x.signal_id = b.signal_id
LEFT JOIN refused r ON r.run_id = b.run_id AND r.signal_id = b.signal_id
GROUP BY b.run_id, b.category ORDER BY b.run_id, b.category;
