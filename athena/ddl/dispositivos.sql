CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`dispositivos` (
  `casa_id` string COMMENT 'Home the device is in',
  `dispositivo_id` string COMMENT 'Device',
  `tipo` string COMMENT 'Kind of device, as in termostato or enchufe',
  `nombre` string COMMENT 'What its owner calls it, may change',
  `averia` string COMMENT 'What is wrong with it, null while it works',
  `actualizado_en` timestamp COMMENT 'When the entry was written in this form',
  `item_keys` string COMMENT 'Key attributes of the item as DynamoDB JSON',
  `stream_created_at` timestamp COMMENT 'When DynamoDB made the stream record, in whole seconds',
  `stream_shard` string COMMENT 'Shard of the stream record',
  `stream_seq` string COMMENT 'Sequence number of the stream record, to compare as a number'
)
COMMENT 'Registry of the devices in homes, one row for each version of an entry'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of actualizado_en'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/dispositivos/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2020-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/dispositivos/dt=${dt}/'
)
