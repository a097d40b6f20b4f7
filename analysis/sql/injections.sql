-- Every generated task that entered training, with the epoch that took it in.
CREATE OR REPLACE TEMP VIEW injections AS
SELECT run_id, epoch, first_step, unnest(injected) AS task_id FROM epoch_planned;
