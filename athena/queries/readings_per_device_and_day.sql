-- purpose: How many readings each sensor node sent on each UTC day
-- contract: sensor_readings
-- role: readings
-- parameter: from_day day 0001-01-01 First UTC day to read; a narrow range reads fewer files
-- parameter: to_day day 9999-12-31 Last UTC day to read
SELECT device_id, dt, COUNT(*) AS readings
FROM sensor_readings
WHERE dt BETWEEN ? AND ?
GROUP BY device_id, dt
ORDER BY device_id, dt
