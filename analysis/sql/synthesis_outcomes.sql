-- How each boundary signal ended: made, the failure that ended it, or open; with attempts, refusals, and tokens of models.
CREATE OR REPLACE TEMP VIEW synthesis_outcomes AS
WITH ended AS (
    SELECT run_id, signal_id, 'made' AS outcome, task.task_id AS variant_task_id, num_attempts, backend, completions FROM task_synthesized
    UNION ALL
    SELECT run_id, signal_id, failure, NULL, num_attempts, backend, completions FROM synthesis_failed
), refused AS (SELECT run_id, signal_id, count(*) AS num_rejected FROM variant_rejected GROUP BY run_id, signal_id)
SELECT b.run_id, b.signal_id, b.task_id, b.category, b.step, b.epoch, b.evidence.mean AS seed_mean, b.evidence.phi AS seed_phi,
    b.rank, b.quota, coalesce(e.outcome, 'open') AS outcome, e.variant_task_id, coalesce(e.num_attempts, 0) AS num_attempts,
    coalesce(r.num_rejected, 0) AS num_rejected, e.backend, coalesce(len(e.completions), 0) AS num_questions,
    coalesce(list_sum(list_transform(e.completions, lambda c: c.num_prompt_tokens)), 0)::BIGINT AS num_prompt_tokens,
    coalesce(list_sum(list_transform(e.completions, lambda c: c.num_completion_tokens)), 0)::BIGINT AS num_completion_tokens
FROM boundary_detected b
LEFT JOIN ended e ON e.run_id = b.run_id AND e.signal_id = b.signal_id
LEFT JOIN refused r ON r.run_id = b.run_id AND r.signal_id = b.signal_id
ORDER BY b.run_id, b.step, b.rank, b.task_id;
