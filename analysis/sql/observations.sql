-- What each completed group says about its task, by the rules of the run's own pool settings: one row an observation.
-- The first group of a (step, task) counts; a group with too few valid rollouts is no observation.
CREATE OR REPLACE TEMP VIEW observations AS
WITH first_groups AS (
    SELECT * FROM rollout_group_completed
    QUALIFY row_number() OVER (PARTITION BY run_id, step, task_id ORDER BY log_partition, log_offset) = 1
), judged AS (
    SELECT g.*, s.* EXCLUDE (run_id),
        list_transform(
            list_filter(range(1, len(g.rewards) + 1), lambda i: g.rewards[i] IS NOT NULL AND isfinite(g.rewards[i])),
            lambda i: CASE
                WHEN s.signal <> 'binary' THEN g.rewards[i]
                WHEN len(g.turn_verdicts[i]) > 0 AND list_min(g.turn_verdicts[i]) = 1 AND list_max(g.turn_verdicts[i]) = 1 THEN 1.0
                ELSE 0.0 END) AS signals
    FROM first_groups g JOIN pool_settings s USING (run_id)
), measured AS (
    SELECT *, list_avg(signals) AS mean, list_aggregate(signals, 'var_pop') AS variance FROM judged
    WHERE len(signals) > 0 AND len(signals) >= min_valid_frac * num_rollouts
)
SELECT run_id, step, epoch, task_id, group_id, policy_version, num_rollouts, len(signals) AS num_valid, mean, variance,
    4 * mean * (1 - mean) AS phi,
    CASE WHEN mean < alpha_low - zone_slack THEN 'hard'
         WHEN mean > alpha_high + zone_slack THEN 'mastered'
         ELSE 'boundary' END AS zone
FROM measured ORDER BY run_id, step, task_id;
