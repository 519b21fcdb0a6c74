CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`lecturas` (
  `dispositivo_id` string COMMENT 'Device, the registry dispositivos says what it is and whose',
  `ts` timestamp COMMENT 'When the device took the reading',
  `valor` decimal(18,6) COMMENT 'The value read, in the unit of column unidad',
  `unidad` string COMMENT 'Unit of the value, as in W, celsius or percent',
  `bateria_pct` decimal(5,2) COMMENT 'Charge of the battery, null for devices on mains [percent]',
  `expira` timestamp COMMENT 'When the hot table may delete the item, the lake keeps the row',
  `stream_created_at` timestamp COMMENT 'When DynamoDB made the stream record, in whole seconds'
)
COMMENT 'Readings of the devices in homes, one row for each device and instant'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of ts'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/lecturas/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2020-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/lecturas/dt=${dt}/'
)
