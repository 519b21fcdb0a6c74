CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`sensor_readings` (
  `device_id` string COMMENT 'Sensor node',
  `taken_at` timestamp COMMENT 'When the node took the reading',
  `tie` string COMMENT 'Tells readings of one node and millisecond apart, null for the first',
  `celsius` decimal(5,2) COMMENT 'Air temperature [degree Celsius]',
  `humidity` decimal(6,3) COMMENT 'Relative humidity of the air [percent]',
  `expires_at` timestamp COMMENT 'When the hot table may delete the item, the lake keeps the row',
  `stream_created_at` timestamp COMMENT 'When DynamoDB made the stream record, in whole seconds'
)
COMMENT 'Temperature and relative humidity of sensor nodes, one row for each reading'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of taken_at'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/sensor_readings/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2016-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/sensor_readings/dt=${dt}/'
)
