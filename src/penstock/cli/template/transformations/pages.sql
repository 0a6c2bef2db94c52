-- Clicks a minute and page. A minute is written when no click for it is expected any more: 30 seconds after it, by the
-- clock of the clicks. Later ones are left out here; the table clicks has them.
CREATE STREAMING TABLE clicks_a_minute AS
SELECT window(at, '1 minute').start AS minute, page, count(*) AS clicks
FROM STREAM clicks WATERMARK at DELAY OF INTERVAL 30 SECONDS
GROUP BY window(at, '1 minute'), page;

-- Recomputed whole in every run.
CREATE MATERIALIZED VIEW pages AS
SELECT page, count(*) AS clicks, count(DISTINCT user) AS users, percentile_approx(ms, 0.95) AS p95_ms
FROM clicks
GROUP BY page;
