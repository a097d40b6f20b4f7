-- What became of the boundary signals of each category, and which failures ended the lost ones.
CREATE OR REPLACE TEMP VIEW synthesis_yield AS
SELECT run_id, category, count(*) AS num_signals, count(*) FILTER (outcome = 'made') AS num_synthesized,
    count(*) FILTER (outcome NOT IN ('made', 'open')) AS num_failed, count(*) FILTER (outcome = 'open') AS num_open,
    count(*) FILTER (outcome = 'made') / count(*) AS yield_frac,
    avg(num_attempts) FILTER (outcome <> 'open') AS mean_attempts, sum(num_rejected)::BIGINT AS num_rejected,
    histogram(outcome) FILTER (outcome NOT IN ('made', 'open')) AS failures
FROM synthesis_outcomes GROUP BY run_id, category ORDER BY run_id, category;
