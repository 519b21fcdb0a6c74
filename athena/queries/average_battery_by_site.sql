-- purpose: Average charge of the battery by site, over the readings that report one
-- contract: device_telemetry
-- role: readings
-- parameter: from_day day 0001-01-01 First UTC day to read; a narrow range reads fewer files
-- parameter: to_day day 9999-12-31 Last UTC day to read
SELECT
    job_site_id,
    COUNT(battery_pct) AS readings,
    ROUND(AVG(CAST(battery_pct AS DOUBLE)), 4) AS avg_battery_pct
FROM device_telemetry
WHERE dt BETWEEN ? AND ?
GROUP BY job_site_id
ORDER BY job_site_id
