CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`windows` (
  `as_of` timestamp COMMENT 'When this was stored, by the clock of the service that stores it',
  `checkpoint` string COMMENT 'Checkpoint table that stored it',
  `lane` string COMMENT 'Sequence of windows',
  `incarnation` string COMMENT 'Life of the lane in which they are numbered',
  `stream` string COMMENT 'ARN of the stream, while the window is stored',
  `first_window` bigint COMMENT 'Number of the window, or of the first of several in one state',
  `last_window` bigint COMMENT 'Number of the last of them',
  `state` string COMMENT 'pending, committed, sealed, void (given up), folded (sealed, and its item is gone) or unknown',
  `part_count` bigint COMMENT 'Parts, while the window is stored',
  `row_count` bigint COMMENT 'Rows of the table itself, while the window is stored',
  `change_count` bigint COMMENT 'Rows of changes',
  `tombstone_count` bigint COMMENT 'Rows of tombstones',
  `quarantined_count` bigint COMMENT 'Rows of quarantine',
  `ignored_count` bigint COMMENT 'Records that the contract refused',
  `oldest_record_at` timestamp COMMENT 'Lowest creation time of its records',
  `committed_at` timestamp COMMENT 'When the window was committed',
  `landed_at` timestamp COMMENT 'When its parts were landed last',
  `landed_again` bigint COMMENT 'How often they were landed after the commit',
  `has_gaps` boolean COMMENT 'Whether gaps were opened of its records'
)
COMMENT 'Windows of each lane by state, each hour'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of as_of'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/windows/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2026-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/windows/dt=${dt}/'
)
