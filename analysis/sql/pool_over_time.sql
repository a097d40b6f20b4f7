-- The pool of each epoch: who trains, who waits, who came and who left.
CREATE OR REPLACE TEMP VIEW pool_over_time AS
SELECT run_id, epoch, stage, first_step, num_steps, num_human, num_generated, num_human + num_generated AS num_active,
    num_queued, len(injected) AS num_injected, len(retired) AS num_retired
FROM epoch_planned ORDER BY run_id, epoch;
