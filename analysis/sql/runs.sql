-- Every run with the run it was forked from; off_policy: its shared steps were learned from the parent's rollouts.
CREATE OR REPLACE TEMP VIEW runs AS
WITH ended AS (SELECT run_id, arg_max(outcome, log_offset) AS outcome FROM run_finished GROUP BY run_id),
done AS (SELECT run_id, count(*) AS num_steps, arg_max(weights_digest, step) AS weights_digest FROM step_completed GROUP BY run_id)
SELECT s.run_id, nullif(s.parent_run_id, '') AS parent_run_id, nullif(s.forked_at_step, -1) AS forked_at_step,
    nullif(s.fork_mode, '') AS fork_mode, s.fork_mode = 'retrain' AS off_policy, s.seed, e.outcome,
    coalesce(d.num_steps, 0) AS num_steps, d.weights_digest
FROM run_started s LEFT JOIN ended e USING (run_id) LEFT JOIN done d USING (run_id) ORDER BY s.run_id;
