-- The line of every task back to its human seed, one row a generation; depth 0 is the task itself.
CREATE OR REPLACE TEMP VIEW why AS
WITH RECURSIVE line AS (
    SELECT run_id, task_id, 0 AS depth, task_id AS ancestor_id, parent_task_id, generation, signal_id, origin FROM task_origins
    UNION ALL
    SELECT l.run_id, l.task_id, l.depth + 1, p.task_id, p.parent_task_id, p.generation, p.signal_id, p.origin
    FROM line l JOIN task_origins p ON p.run_id = l.run_id AND p.task_id = l.parent_task_id AND p.generation < l.generation
), seen AS (
    SELECT run_id, task_id, count(*) AS num_observations, arg_min(mean, step) AS first_mean, arg_max(mean, step) AS last_mean
    FROM observations GROUP BY run_id, task_id
), trained AS (
    SELECT run_id, task_id, list(DISTINCT trained_step ORDER BY trained_step) AS trained_steps
    FROM trained_groups WHERE trained_step IS NOT NULL GROUP BY run_id, task_id
)
SELECT l.run_id, l.task_id, l.depth, l.ancestor_id, l.origin, l.generation, l.signal_id, o.step AS signal_step,
    o.seed_mean, o.seed_phi, o.rank, o.quota, o.outcome, o.num_attempts, o.num_rejected, i.epoch AS injected_epoch,
    s.num_observations, s.first_mean, s.last_mean, coalesce(t.trained_steps, []) AS trained_steps,
    r.reason AS retired_because, r.epoch AS retired_epoch
FROM line l
LEFT JOIN synthesis_outcomes o ON o.run_id = l.run_id AND o.signal_id = l.signal_id
LEFT JOIN injections i ON i.run_id = l.run_id AND i.task_id = l.ancestor_id
LEFT JOIN seen s ON s.run_id = l.run_id AND s.task_id = l.ancestor_id
LEFT JOIN trained t ON t.run_id = l.run_id AND t.task_id = l.ancestor_id
LEFT JOIN task_retired r ON r.run_id = l.run_id AND r.task_id = l.ancestor_id
ORDER BY l.run_id, l.task_id, l.depth;
