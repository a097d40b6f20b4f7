-- Every rollout: its reward, its group and task, the batch it was played for, and the step it trained or why none.
CREATE OR REPLACE TEMP VIEW why_rollout AS
WITH played AS (
    SELECT * EXCLUDE (trajectory_ids, rewards), unnest(trajectory_ids) AS trajectory_id, unnest(rewards) AS reward,
        generate_subscripts(trajectory_ids, 1) - 1 AS rollout_index
    FROM trained_groups
)
SELECT p.run_id, p.trajectory_id, p.rollout_index, p.reward, p.group_id, p.attempt, p.step, p.epoch, p.policy_version, p.task_id,
    b.event_id AS batch_id, t.origin, t.generation, t.parent_task_id, t.root_task_id, t.signal_id AS made_by_signal_id,
    o.mean, o.zone, p.trained_step, p.left_out_because, p.weights_digest
FROM played p
LEFT JOIN batch_planned b ON b.run_id = p.run_id AND b.step = p.step
LEFT JOIN task_origins t ON t.run_id = p.run_id AND t.task_id = p.task_id
LEFT JOIN observations o ON o.run_id = p.run_id AND o.group_id = p.group_id
ORDER BY p.run_id, p.step, p.task_id, p.attempt, p.rollout_index;
