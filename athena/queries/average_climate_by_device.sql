-- purpose: Average temperature and relative humidity of each sensor node
-- contract: sensor_readings
-- role: readings
-- parameter: from_day day 0001-01-01 First UTC day to read; a narrow range reads fewer files
-- parameter: to_day day 9999-12-31 Last UTC day to read
SELECT
    device_id,
    COUNT(*) AS readings,
    ROUND(AVG(CAST(celsius AS DOUBLE)), 4) AS avg_celsius,
    ROUND(AVG(CAST(humidity AS DOUBLE)), 4) AS avg_humidity
FROM sensor_readings
WHERE dt BETWEEN ? AND ?
GROUP BY device_id
ORDER BY device_id
