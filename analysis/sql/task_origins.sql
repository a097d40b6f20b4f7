-- Every task with where it comes from: human seeds, and variants with parent, root and the signal that asked for them.
CREATE OR REPLACE TEMP VIEW task_origins AS
SELECT run_id, task.task_id AS task_id, task.category AS category, 'human' AS origin, 0::BIGINT AS generation,
    NULL::VARCHAR AS parent_task_id, task.task_id AS root_task_id, NULL::VARCHAR AS signal_id
FROM task_seeded
UNION ALL
SELECT run_id, task.task_id, task.category, 'generated', generation, parent_task_id, root_task_id, signal_id FROM task_synthesized;
