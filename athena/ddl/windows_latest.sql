CREATE OR REPLACE VIEW "telemetrylake"."windows_latest" AS
SELECT w."as_of",
  w."checkpoint",
  w."lane",
  w."incarnation",
  w."stream",
  w."first_window",
  w."last_window",
  w."state",
  w."part_count",
  w."row_count",
  w."change_count",
  w."tombstone_count",
  w."quarantined_count",
  w."ignored_count",
  w."oldest_record_at",
  w."committed_at",
  w."landed_at",
  w."landed_again",
  w."has_gaps"
FROM (
  SELECT *, max("as_of") OVER (PARTITION BY "checkpoint", "lane") AS "_latest"
  FROM "telemetrylake"."windows"
) w
WHERE w."as_of" = w."_latest"
