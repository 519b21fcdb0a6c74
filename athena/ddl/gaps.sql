CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`gaps` (
  `as_of` timestamp COMMENT 'When this was stored, by the clock of the service that stores it',
  `checkpoint` string COMMENT 'Checkpoint table that stored it',
  `gap_id` string COMMENT 'Name of the gap, unique within its stream',
  `stream` string COMMENT 'ARN of the stream',
  `shard` string COMMENT 'Shard of the missing records',
  `lane` string COMMENT 'Lane that owned the shard when the gap was found',
  `state` string COMMENT 'open, repairing or closed',
  `cause` string COMMENT 'trimmed, vanished, window, rebuilt, disabled or discarded',
  `after_seq` string COMMENT 'Sequence number of the last record read before it',
  `before_seq` string COMMENT 'Sequence number of the first record read after it',
  `first_seq` string COMMENT 'Sequence number of the first missing record, where it is known',
  `last_seq` string COMMENT 'Sequence number of the last missing record, where it is known',
  `created_from` timestamp COMMENT 'What was created before it is not missing',
  `created_to` timestamp COMMENT 'What was created after it is not missing',
  `window_id` string COMMENT 'Window of the missing records, if one was begun: lane/incarnation/n',
  `detected_at` timestamp COMMENT 'When it was found',
  `evidence` string COMMENT 'How it was closed'
)
COMMENT 'Entries of the gap ledger, each hour: records that aged out before they were read or landed'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of as_of'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/gaps/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2026-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/gaps/dt=${dt}/'
)
