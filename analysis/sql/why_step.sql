-- Every task of every batch: the plan behind it, its origin, what its group gave, whether it trained, the signal it sent.
CREATE OR REPLACE TEMP VIEW why_step AS
WITH planned AS (SELECT run_id, step, epoch, event_id AS batch_id, unnest(task_ids) AS task_id FROM batch_planned),
counted AS (
    SELECT * FROM trained_groups
    QUALIFY row_number() OVER (PARTITION BY run_id, step, task_id ORDER BY trained_step IS NULL, attempt) = 1
)
SELECT b.run_id, b.step, b.epoch, b.batch_id, e.event_id AS plan_id, e.stage, b.task_id, t.origin, t.generation, t.parent_task_id,
    t.root_task_id, t.signal_id AS made_by_signal_id, i.epoch AS injected_epoch, g.group_id, o.mean, o.zone, g.trained_step,
    g.left_out_because, g.weights_digest, s.signal_id AS sent_signal_id, s.outcome AS signal_outcome, s.variant_task_id
FROM planned b
LEFT JOIN epoch_planned e ON e.run_id = b.run_id AND e.epoch = b.epoch
LEFT JOIN task_origins t ON t.run_id = b.run_id AND t.task_id = b.task_id
LEFT JOIN injections i ON i.run_id = b.run_id AND i.task_id = b.task_id
LEFT JOIN counted g ON g.run_id = b.run_id AND g.step = b.step AND g.task_id = b.task_id
LEFT JOIN observations o ON o.run_id = b.run_id AND o.step = b.step AND o.task_id = b.task_id
LEFT JOIN synthesis_outcomes s ON s.run_id = b.run_id AND s.step = b.step AND s.task_id = b.task_id
ORDER BY b.run_id, b.step, b.task_id;
