CREATE OR REPLACE VIEW "telemetrylake"."gaps_latest" AS
SELECT w."as_of",
  w."checkpoint",
  w."gap_id",
  w."stream",
  w."shard",
  w."lane",
  w."state",
  w."cause",
  w."after_seq",
  w."before_seq",
  w."first_seq",
  w."last_seq",
  w."created_from",
  w."created_to",
  w."window_id",
  w."detected_at",
  w."evidence"
FROM (
  SELECT *, max("as_of") OVER (PARTITION BY "stream", "gap_id") AS "_latest"
  FROM "telemetrylake"."gaps"
) w
WHERE w."as_of" = w."_latest"
