-- Views of the results for Grafana, in a PostgreSQL database of Treehammer. They read roll-ups and
-- small tables, so that panels stay quick with many measurements. Create them as the owner of the
-- tables, and again after each `treehammer db upgrade`:
--
--     psql DATABASE --file views.sql
--
-- Then give Grafana's database user the views alone, once (views that are made again keep their readers):
--
--     GRANT USAGE ON SCHEMA dashboards TO grafana;
--     GRANT SELECT ON ALL TABLES IN SCHEMA dashboards TO grafana;
--
-- Times are in UTC. Days are those of the start of a measurement. Ratios are 1 for 100 %.
BEGIN;
CREATE TEMPORARY TABLE kept_grants ON COMMIT DROP AS
WITH object (name, owner, privileges) AS (
    SELECT 'SCHEMA dashboards', nspowner, nspacl FROM pg_namespace WHERE nspname = 'dashboards'
    UNION ALL
    SELECT format('TABLE dashboards.%I', relname), relowner, relacl
    FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = 'dashboards'
)
SELECT
    name,
    privilege_type,
    CASE WHEN privilege.grantee = 0 THEN 'PUBLIC' ELSE privilege.grantee::regrole::text END AS reader,
    (SELECT count(*) FROM object WHERE name <> 'SCHEMA dashboards') AS views
FROM object
CROSS JOIN aclexplode(privileges) AS privilege
WHERE privilege.grantee <> owner;

DROP SCHEMA IF EXISTS dashboards CASCADE;
CREATE SCHEMA dashboards;

-- One line for each day, kind of work and outcome: good, implausible, not supported, or the class of
-- the failure. Means are those of good measurements; NULL without any.
CREATE VIEW dashboards.work_day AS
SELECT
    to_date(rollup_day.day::text, 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS "time",
    coalesce(subject.site, '') AS site,
    coalesce(subject.storage_site, '') AS storage_site,
    coalesce(subject.door, '') AS door,
    coalesce(subject.door_protocol, '') AS protocol,
    subject.test_name AS test,
    coalesce(subject.variant_label, '') AS variant,
    coalesce(subject.dataset, '') AS dataset,
    coalesce(subject.axis_root, '') AS root_release,
    rollup_day.kind,
    rollup_day.outcome,
    rollup_day.measurements,
    s_eff_job / nullif(n_eff_job, 0) AS cpu_efficiency,
    s_cpu_per_event_s / nullif(n_cpu_per_event_s, 0) AS cpu_per_event_s,
    s_wall_per_event_s / nullif(n_wall_per_event_s, 0) AS wall_per_event_s,
    s_event_rate_hz / nullif(n_event_rate_hz, 0) AS event_rate_hz,
    s_bytes_read / nullif(n_bytes_read, 0) AS bytes_read
FROM rollup_day
JOIN subject ON subject.id = rollup_day.subject_id;

-- One line for each day and site.
CREATE VIEW dashboards.site_day AS
SELECT
    to_date(rollup_day.day::text, 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS "time",
    coalesce(subject.site, '') AS site,
    sum(measurements) AS measurements,
    sum(measurements) FILTER (WHERE outcome = 'good') AS good,
    sum(measurements) FILTER (WHERE outcome = 'implausible') AS implausible,
    sum(measurements) FILTER (WHERE outcome NOT IN ('good', 'implausible', 'not supported')) AS failed,
    sum(s_eff_job) FILTER (WHERE outcome = 'good' AND kind = 'timed')
        / nullif(sum(n_eff_job) FILTER (WHERE outcome = 'good' AND kind = 'timed'), 0)
        AS cpu_efficiency,
    sum(s_event_rate_hz) FILTER (WHERE outcome = 'good' AND kind = 'timed')
        / nullif(sum(n_event_rate_hz) FILTER (WHERE outcome = 'good' AND kind = 'timed'), 0)
        AS event_rate_hz
FROM rollup_day
JOIN subject ON subject.id = rollup_day.subject_id
GROUP BY 1, 2;

-- One line for each change of a state: of the jobs or the storage of a site, or of a door.
CREATE VIEW dashboards.state_change AS
SELECT
    to_timestamp(since_us / 1e6) AS "time",
    subject_kind AS of,
    coalesce(site, '') AS site,
    previous,
    state,
    cause,
    coalesce(reason, '') AS reason
FROM status_change
WHERE superseded_us IS NULL;

-- One line for each verdict on two ROOT releases; change is relative: 0.02 is 2 % more with b.
CREATE VIEW dashboards.release_verdict AS
SELECT
    to_timestamp(created_us / 1e6) AS "time",
    comparison_id,
    scope,
    coalesce(site, '') AS site,
    coalesce(label, '') AS variant,
    metric,
    a,
    b,
    verdict,
    exp(effect) - 1 AS change,
    exp(low) - 1 AS change_low,
    exp(high) - 1 AS change_high,
    jobs
FROM verdict
WHERE axis = 'root';

-- One line for each confirmed or provisional change point.
CREATE VIEW dashboards.change_point AS
SELECT
    to_date(day::text, 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS "time",
    id,
    state,
    metric,
    coalesce(test_name, '') AS test,
    attribution,
    coalesce(subject, '') AS subject,
    exp(effect) - 1 AS change,
    exp(low) - 1 AS change_low,
    exp(high) - 1 AS change_high,
    coalesce(cause, '') AS cause
FROM change_point;

-- One line for each day, door and operation of load tests, as the clients saw it, in steps in which
-- the storage, not the generator, was the limit.
CREATE VIEW dashboards.load_day AS
SELECT
    to_date(rollup_operation.day::text, 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS "time",
    coalesce(subject.storage_site, '') AS storage_site,
    coalesce(subject.door, '') AS door,
    coalesce(subject.door_protocol, '') AS protocol,
    subject.test_name AS test,
    operation,
    sum(steps) AS steps,
    sum(limited_steps) AS generator_limited_steps,
    sum(scheduled) AS scheduled,
    sum(done) AS done,
    sum(failed) AS failed,
    sum(late) AS late,
    sum(bytes) AS bytes
FROM rollup_operation
JOIN subject ON subject.id = rollup_operation.subject_id
WHERE side = 'client'
GROUP BY 1, 2, 3, 4, 5, 6;

-- One line for each campaign, with its jobs by state.
CREATE VIEW dashboards.campaign AS
SELECT
    to_timestamp(campaign.created_us / 1e6) AS "time",
    campaign.id,
    coalesce(campaign.name, campaign.id) AS name,
    coalesce(campaign.test_name, '') AS test,
    campaign.planned_measurements,
    count(job.id) AS jobs,
    count(job.id) FILTER (WHERE job.state IN ('queued', 'running', 'held')) AS unfinished_jobs
FROM campaign
LEFT JOIN job ON job.campaign_id = campaign.id
GROUP BY campaign.id, campaign.created_us, campaign.name, campaign.test_name,
    campaign.planned_measurements;

-- One line for each start of a campaign by patrol.
CREATE VIEW dashboards.patrol_start AS
SELECT
    to_timestamp(due_us / 1e6) AS "time",
    entry,
    occasion,
    coalesce(campaign_id, '') AS campaign_id,
    state,
    (finished_us - claimed_us) / 1e6 AS duration_s,
    coalesce(message, '') AS message
FROM patrol_start;

-- One line for each campaign, site and day that patrol charged; used is NULL until it has ended.
CREATE VIEW dashboards.patrol_cost AS
SELECT
    (date '1970-01-01' + day::integer)::timestamp AT TIME ZONE 'UTC' AS "time",
    site,
    campaign_id,
    reserved_cpu_s,
    reserved_bytes,
    used_cpu_s,
    used_bytes
FROM patrol_charge;

DO $$
DECLARE
    kept record;
BEGIN
    FOR kept IN
        SELECT * FROM kept_grants
        WHERE name = 'SCHEMA dashboards' OR to_regclass(replace(name, 'TABLE ', '')) IS NOT NULL
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', kept.privilege_type, kept.name, kept.reader);
    END LOOP;
    -- Readers of all views read new ones, too.
    FOR kept IN
        SELECT reader FROM kept_grants WHERE privilege_type = 'SELECT'
        GROUP BY reader, views HAVING count(*) = views
    LOOP
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA dashboards TO %s', kept.reader);
    END LOOP;
END $$;
COMMIT;
