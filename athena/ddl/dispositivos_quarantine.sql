CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`dispositivos_quarantine` (
  `item_keys` string COMMENT 'Key attributes of the item as DynamoDB JSON',
  `item` string COMMENT 'The item as DynamoDB JSON',
  `event_name` string COMMENT 'INSERT, MODIFY or REMOVE',
  `reason` string COMMENT 'Why the record is not in the table, one stable word',
  `detail` string COMMENT 'Column and cause, for people',
  `contract_hash` string COMMENT 'Hash of the contract that refused the record',
  `stream_created_at` timestamp COMMENT 'When DynamoDB made the stream record, in whole seconds',
  `stream_shard` string COMMENT 'Shard of the stream record',
  `stream_seq` string COMMENT 'Sequence number of the stream record, to compare as a number'
)
COMMENT 'Records that are not in dispositivos, with the reason'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of stream_created_at'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/dispositivos_quarantine/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2020-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/dispositivos_quarantine/dt=${dt}/'
)
