-- Where the time and the tokens of each epoch went; times are wall-clock seconds of the trainer's phases.
CREATE OR REPLACE TEMP VIEW cost AS
SELECT run_id, epoch, count(*) AS num_steps, sum(num_trajectories)::BIGINT AS num_trajectories,
    sum(num_trained_tokens)::BIGINT AS num_trained_tokens,
    sum(list_sum(map_values(timings_ms))) / 1000 AS total_s,
    sum(timings_ms['rollout']) / 1000 AS rollout_s, sum(timings_ms['update']) / 1000 AS update_s,
    sum(num_trained_tokens) / nullif(sum(list_sum(map_values(timings_ms))) / 1000, 0) AS trained_tokens_per_s,
    sum(num_zero_variance) / nullif(sum(num_groups), 0) AS groups_without_signal_frac
FROM step_completed GROUP BY run_id, epoch ORDER BY run_id, epoch;
