-- Every group of rollouts with the step that learned from it, or why none did.
CREATE OR REPLACE TEMP VIEW trained_groups AS
WITH drops AS (SELECT run_id, group_id, any_value(reason) AS reason FROM rollouts_dropped GROUP BY run_id, group_id)
SELECT g.run_id, g.group_id, g.task_id, g.step, g.epoch, g.attempt, g.policy_version, g.rewards, g.trajectory_ids, g.status,
    CASE WHEN d.reason IS NULL AND (len(s.group_ids) = 0 OR list_contains(s.group_ids, g.group_id)) THEN s.step END AS trained_step,
    CASE WHEN trained_step IS NOT NULL THEN s.weights_digest END AS weights_digest,
    coalesce(d.reason, CASE WHEN s.step IS NULL THEN 'step not completed'
        WHEN len(s.group_ids) > 0 AND NOT list_contains(s.group_ids, g.group_id) THEN 'another attempt counted' END) AS left_out_because
FROM rollout_group_completed g
LEFT JOIN step_completed s ON s.run_id = g.run_id AND s.step = g.step
LEFT JOIN drops d ON d.run_id = g.run_id AND d.group_id = g.group_id
ORDER BY g.run_id, g.step, g.task_id, g.attempt;
