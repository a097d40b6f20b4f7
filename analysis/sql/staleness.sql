-- How old the boundary estimate behind an injected task is when the task is trained on: steps and policy updates.
CREATE OR REPLACE TEMP VIEW staleness AS
SELECT f.run_id, f.task_id, b.step AS signal_step, i.first_step AS injected_step, f.first_trained_step,
    i.first_step - b.step AS steps_to_injection, f.first_trained_step - b.step AS steps_to_training,
    o.policy_version - b.policy_version AS policy_updates, f.seed_mean, f.first_mean, f.first_zone
FROM injected_first_rewards f
JOIN injections i ON i.run_id = f.run_id AND i.task_id = f.task_id
JOIN task_synthesized t ON t.run_id = f.run_id AND t.task.task_id = f.task_id
JOIN boundary_detected b ON b.run_id = f.run_id AND b.signal_id = t.signal_id
LEFT JOIN observations o ON o.run_id = f.run_id AND o.task_id = f.task_id AND o.step = f.first_trained_step
ORDER BY f.run_id, injected_step, f.task_id;
