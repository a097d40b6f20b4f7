-- The line of every task back to its human seed, one row a generation; depth 0 is the task itself.
CREATE OR REPLACE TEMP VIEW why AS
WITH RECURSIVE tasks AS (
    SELECT run_id, task.task_id AS task_id, NULL::VARCHAR AS parent_task_id, 0::BIGINT AS generation, NULL::VARCHAR AS signal_id, 'human' AS origin
    FROM task_seeded
    UNION ALL
    SELECT run_id, task.task_id, parent_task_id, generation, signal_id, 'generated' FROM task_synthesized
), line AS (
    SELECT run_id, task_id, 0 AS depth, task_id AS ancestor_id, parent_task_id, generation, signal_id, origin FROM tasks
    UNION ALL
    SELECT l.run_id, l.task_id, l.depth + 1, p.task_id, p.parent_task_id, p.generation, p.signal_id, p.origin
    FROM line l JOIN tasks p ON p.run_id = l.run_id AND p.task_id = l.parent_task_id
), seen AS (
    SELECT run_id, task_id, count(*) AS num_observations, arg_min(mean, step) AS first_mean, arg_max(mean, step) AS last_mean
    FROM observations GROUP BY run_id, task_id
)
SELECT l.run_id, l.task_id, l.depth, l.ancestor_id, l.origin, l.generation, l.signal_id, b.step AS signal_step,
    b.evidence.mean AS seed_mean, b.evidence.phi AS seed_phi, b.rank, b.quota, i.epoch AS injected_epoch,
    s.num_observations, s.first_mean, s.last_mean, r.reason AS retired_because, r.epoch AS retired_epoch
FROM line l
LEFT JOIN boundary_detected b ON b.run_id = l.run_id AND b.signal_id = l.signal_id
LEFT JOIN injections i ON i.run_id = l.run_id AND i.task_id = l.ancestor_id
LEFT JOIN seen s ON s.run_id = l.run_id AND s.task_id = l.ancestor_id
LEFT JOIN task_retired r ON r.run_id = l.run_id AND r.task_id = l.ancestor_id
ORDER BY l.run_id, l.task_id, l.depth;
