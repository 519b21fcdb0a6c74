#!/usr/bin/env bash
# usage: run.sh
# Runs the main job, and what look-alikes do otherwise than AWS, on those that need no Docker:
# installs them where they are not (install.sh), starts them on loopback, moves all readings of
# STREAMER_TEST_READINGS, or as many generated ones, through each, and stops them. Needs Go, gcc,
# Python and, to install, PyPI. Nothing is left but the installed packages. The last lines say
# what was run on which. Some minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
begun=$SECONDS

export STREAMER_TEST_STRANGERS=${STREAMER_TEST_STRANGERS:-${XDG_CACHE_HOME:-$HOME/.cache}/telemetrylake/strangers}
# The real readings, where they lie beside the checkout.
readings="$PWD/../shared/data/room-climate-a.csv.gz"
if [[ -z "${STREAMER_TEST_READINGS:-}" && -f "$readings" ]]; then
	export STREAMER_TEST_READINGS="$readings"
fi
export STREAMER_TEST_ROWS=${STREAMER_TEST_ROWS:-all}

"$here/install.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
tests='^(TestMainJob|TestLookAlikes.*|TestPackagesListenOnLoopbackOnly)$/^(embedded|ministack|ministack_alone|moto|moto_alone|localstack)$'
# While one waits for another's clock, a third has the processor.
status=0
TMPDIR="$work/tmp" go test -tags integration ./testenv/containers ./cmd/streamer -run "$tests" \
	-count 1 -v -timeout 25m -parallel 3 >"$work/log" 2>&1 || status=$?
if ((status)); then
	grep -v '^=== ' "$work/log" >&2 || true
	echo "strangers: FAILED after $((SECONDS - begun)) s" >&2
	exit 1
fi
grep -E '^ok|^ *--- ' "$work/log"

# Go keeps what it builds in TMPDIR while it runs; then nothing may be left.
left=$(find "$work/tmp" -mindepth 1 -maxdepth 1)
running=$(ps -eo pid=,args= | grep -F "$STREAMER_TEST_STRANGERS/" | grep -v grep || true)
if [[ -n "$left$running" ]]; then
	printf 'strangers: left behind:\n%s\n%s\n' "$left" "$running" >&2
	exit 1
fi

echo "--- strangers: $((SECONDS - begun)) s; packages are in $STREAMER_TEST_STRANGERS"
sed -n 's/^=== ATTR  [^ ]* job //p' "$work/log"
echo "localstack in a container: not run here, it needs Docker: make docker-check"
