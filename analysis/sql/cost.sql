-- Where the time and the tokens of each epoch went: wall-clock seconds of the trainer's phases, and what synthesis asked.
CREATE OR REPLACE TEMP VIEW cost AS
WITH learning AS (
    SELECT run_id, epoch, count(*) AS num_steps, sum(num_trajectories)::BIGINT AS num_trajectories,
        sum(num_trained_tokens)::BIGINT AS num_trained_tokens,
        sum(list_sum(map_values(timings_ms))) / 1000 AS total_s,
        sum(timings_ms['rollout']) / 1000 AS rollout_s, sum(timings_ms['update']) / 1000 AS update_s,
        sum(num_trained_tokens) / nullif(sum(list_sum(map_values(timings_ms))) / 1000, 0) AS trained_tokens_per_s,
        sum(num_zero_variance) / nullif(sum(num_groups), 0) AS groups_without_signal_frac
    FROM step_completed GROUP BY run_id, epoch
), making AS (
    SELECT run_id, epoch, count(*) AS num_signals, sum(num_attempts)::BIGINT AS num_attempts, sum(num_questions)::BIGINT AS num_questions,
        sum(num_prompt_tokens)::BIGINT AS num_prompt_tokens, sum(num_completion_tokens)::BIGINT AS num_completion_tokens
    FROM synthesis_outcomes GROUP BY run_id, epoch
)
SELECT l.*, coalesce(m.num_signals, 0) AS num_signals, coalesce(m.num_attempts, 0) AS synthesis_attempts,
    coalesce(m.num_questions, 0) AS synthesis_questions, coalesce(m.num_prompt_tokens, 0) AS synthesis_prompt_tokens,
    coalesce(m.num_completion_tokens, 0) AS synthesis_completion_tokens
FROM learning l LEFT JOIN making m ON m.run_id = l.run_id AND m.epoch = l.epoch ORDER BY l.run_id, l.epoch;
