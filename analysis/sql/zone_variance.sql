-- Mean reward variance inside the groups of each zone: the signal that group-normalised advantages live on.
CREATE OR REPLACE TEMP VIEW zone_variance AS
SELECT run_id, zone, count(*) AS num_groups, avg(variance) AS mean_variance, avg(mean) AS mean_reward,
    count(*) FILTER (variance = 0) / count(*) AS zero_variance_frac
FROM observations GROUP BY run_id, zone ORDER BY run_id, zone;
