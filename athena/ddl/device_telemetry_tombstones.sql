CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`device_telemetry_tombstones` (
  `device_id` string COMMENT 'Device, as printed on its label',
  `event_ts` timestamp COMMENT 'When the device took the reading, by its own clock',
  `item_keys` string COMMENT 'Key attributes of the item as DynamoDB JSON',
  `delete_cause` string COMMENT 'Who deleted the item: user, ttl or unknown',
  `stream_created_at` timestamp COMMENT 'When DynamoDB made the stream record, in whole seconds',
  `stream_shard` string COMMENT 'Shard of the stream record',
  `stream_seq` string COMMENT 'Sequence number of the stream record, to compare as a number'
)
COMMENT 'Items of device_telemetry that were deleted, and by whom'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of stream_created_at'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/device_telemetry_tombstones/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2020-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/device_telemetry_tombstones/dt=${dt}/'
)
