-- What injected tasks gave when they were trained on for the first time, beside the seed's reward at its signal.
CREATE OR REPLACE TEMP VIEW injected_first_rewards AS
WITH firsts AS (
    SELECT run_id, task_id, min(step) AS first_trained_step, arg_min(mean, step) AS first_mean,
        arg_min(variance, step) AS first_variance, arg_min(phi, step) AS first_phi, arg_min(zone, step) AS first_zone,
        count(*) AS num_observations
    FROM observations GROUP BY run_id, task_id
)
SELECT i.run_id, i.epoch AS injected_epoch, i.task_id, t.task.category AS category, t.parent_task_id, t.root_task_id,
    t.generation, b.evidence.mean AS seed_mean, f.* EXCLUDE (run_id, task_id), r.reason AS retired_because
FROM injections i
JOIN task_synthesized t ON t.run_id = i.run_id AND t.task.task_id = i.task_id
LEFT JOIN boundary_detected b ON b.run_id = i.run_id AND b.signal_id = t.signal_id
LEFT JOIN firsts f ON f.run_id = i.run_id AND f.task_id = i.task_id
LEFT JOIN task_retired r ON r.run_id = i.run_id AND r.task_id = i.task_id
ORDER BY i.run_id, injected_epoch, i.task_id;
