#!/usr/bin/env bash
# The function in AWS's own emulator of Lambda's runtime: builds it once, and runs the test that
# has it invoke streamer as Lambda does. Needs Go and, for the first time, the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source testenv/versions.env

dir=${XDG_CACHE_HOME:-$HOME/.cache}/telemetrylake/rie-$RIE_VERSION
if [[ ! -x $dir/aws-lambda-rie ]]; then
	GOBIN=$dir go install "github.com/aws/aws-lambda-runtime-interface-emulator/cmd/aws-lambda-rie@$RIE_VERSION"
fi
STREAMER_TEST_RIE=$dir/aws-lambda-rie go test -tags integration ./cmd/streamer -run '^TestTheEmulator' -count 1 -v "$@"
