CREATE OR REPLACE VIEW "telemetrylake"."dispositivos_latest" AS
SELECT v."casa_id",
  v."dispositivo_id",
  v."tipo",
  v."nombre",
  v."averia",
  v."actualizado_en",
  v."item_keys",
  v."stream_created_at",
  v."stream_shard",
  v."stream_seq"
FROM (
  SELECT *, row_number() OVER (PARTITION BY item_keys ORDER BY "_position" DESC, "actualizado_en" DESC) AS "_rank"
  FROM (SELECT *, CAST(date_trunc('second', coalesce(stream_created_at, "actualizado_en")) AS varchar) || ' ' || lpad(coalesce(stream_seq, ''), 128, '0') AS "_position" FROM "telemetrylake"."dispositivos") p
) v
LEFT JOIN (
  SELECT item_keys, max(CAST(date_trunc('second', stream_created_at) AS varchar) || ' ' || lpad(coalesce(stream_seq, ''), 128, '0')) AS "_deleted"
  FROM "telemetrylake"."dispositivos_tombstones"
  GROUP BY item_keys
) d ON d.item_keys = v.item_keys
WHERE v."_rank" = 1 AND (d."_deleted" IS NULL OR d."_deleted" < v."_position")
