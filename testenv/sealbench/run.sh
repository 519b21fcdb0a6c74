#!/usr/bin/env bash
# Seal beside DuckDB and parquet-go, on the same parts, in turns and on one core; then the memory
# of a process that seals. TURNS is how many turns there are, STAGING which sizes of staging
# objects, in MiB. With STREAMER_TEST_READINGS set, real readings are among the parts. DuckDB is a
# module of this repository: it needs a C compiler and no network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

turns=${TURNS:-7}
sizes=${STAGING:-16 128 1024}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

readings="$PWD/../shared/data/room-climate-a.csv.gz"
if [[ -z "${STREAMER_TEST_READINGS:-}" && -f "$readings" ]]; then
	export STREAMER_TEST_READINGS="$readings"
fi

go test -c -o "$dir/seal.test" ./pipeline/seal
cd pipeline/seal

echo "--- medians of $turns turns, rows for each second of processor time"
"$dir/seal.test" -test.run '^$' -test.bench '^BenchmarkSealBeside$' -test.cpu 1 -test.benchtime "${turns}x" | awk '
	/^BenchmarkSealBeside\// {
		sub(/^BenchmarkSealBeside\//, "", $1)
		for (i = 3; i < NF; i += 2) v[$(i + 1)] = $i
		printf "%s: %d rows in %d parts; seal %.2f M, DuckDB %.2f M (%.2fx), MergeRowGroups %.2f M (%.2fx); bytes %.3f of DuckDB'"'"'s\n", $1, v["rows"], v["parts"],
			v["seal-rows/cpu-s"] / 1e6, v["duckdb-rows/cpu-s"] / 1e6, v["x-duckdb"], v["mergerowgroups-rows/cpu-s"] / 1e6, v["x-mergerowgroups"], v["bytes/duckdb-byte"]
		done = 1
	}
	/^(---|panic|FAIL)/ { print }
	END { exit !done }'

echo "--- a process that seals one staging object"
for mib in $sizes; do
	"$dir/seal.test" -test.run '^TestAProcessThatSealsStaysSmall$' -test.v -staging "$mib" | grep -E 'MiB of staging|row groups|^--- '
done
