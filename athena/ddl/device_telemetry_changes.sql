CREATE EXTERNAL TABLE IF NOT EXISTS `telemetrylake`.`device_telemetry_changes` (
  `device_id` string COMMENT 'Device, as printed on its label',
  `event_ts` timestamp COMMENT 'When the device took the reading, by its own clock',
  `job_site_id` string COMMENT 'Site the device was assigned to, null while in storage',
  `sku` string COMMENT 'Stock keeping unit of the hardware, for joins with the inventory',
  `model` string COMMENT 'Hardware model, as the device reports it',
  `firmware` string COMMENT 'Firmware version, as the device reports it',
  `battery_pct` decimal(5,2) COMMENT 'Charge of the battery [percent]',
  `charging` boolean COMMENT 'Whether the device was on external power',
  `uptime_s` bigint COMMENT 'Time since the device started, falls when it restarts [s]',
  `rssi_dbm` int COMMENT 'Received signal strength, closer to 0 is stronger [dBm]',
  `snr_db` decimal(5,2) COMMENT 'Signal-to-noise ratio of the radio [dB]',
  `network` string COMMENT 'Kind of radio in use, such as lte-m, nb-iot or lora',
  `latitude` decimal(8,6) COMMENT 'WGS 84 latitude, north positive [degree]',
  `longitude` decimal(9,6) COMMENT 'WGS 84 longitude, east positive [degree]',
  `location_accuracy_m` decimal(8,2) COMMENT 'Radius around the position that the receiver vouches for [m]',
  `payload` map<string,decimal(18,6)> COMMENT 'Sensor values by sensor name, the name ends in its unit, as in temperature_c',
  `tags` array<string> COMMENT 'Labels that people gave the device, in no order',
  `expires_at` timestamp COMMENT 'When the hot table may delete the item, the lake keeps the row',
  `stream_created_at` timestamp COMMENT 'When DynamoDB made the stream record, in whole seconds',
  `stream_shard` string COMMENT 'Shard of the stream record',
  `stream_seq` string COMMENT 'Sequence number of the stream record, to compare as a number'
)
COMMENT 'Rows of device_telemetry that were written over, as they read afterwards'
PARTITIONED BY (
  `dt` string COMMENT 'UTC day of event_ts'
)
STORED AS PARQUET
LOCATION 's3://BUCKET/lake/device_telemetry_changes/'
TBLPROPERTIES (
  'classification' = 'parquet',
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2020-01-01,NOW+1DAYS',
  'projection.dt.interval' = '1',
  'projection.dt.interval.unit' = 'DAYS',
  'storage.location.template' = 's3://BUCKET/lake/device_telemetry_changes/dt=${dt}/'
)
