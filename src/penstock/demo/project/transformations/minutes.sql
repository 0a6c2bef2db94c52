-- A minute is written when no click for it is expected any more: two minutes after it, by the clock of the clicks.
CREATE STREAMING TABLE minutes AS
SELECT window(at, '1 minute').start AS minute, page, count(*) AS clicks
FROM STREAM clicks WATERMARK at DELAY OF INTERVAL 2 MINUTES
GROUP BY window(at, '1 minute'), page;
