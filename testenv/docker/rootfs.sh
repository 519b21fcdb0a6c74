#!/usr/bin/env bash
# usage: rootfs.sh DIR
#
# Lays out in DIR what the image holds: in root the static binary, with the version of this checkout,
# and the certificates of this machine; and an empty folder, for those that the image's user owns.
# It runs inside the image's build and beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[[ $# -eq 1 ]] || { sed -n '2s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$1/root
mkdir -p "$root/etc/ssl/certs" "$1/empty"

# Sources without their history, or one that is kept elsewhere, have no version to stamp.
stamp=true
git -c safe.directory='*' rev-parse -q --verify HEAD >/dev/null 2>&1 || stamp=false
GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' \
	CGO_ENABLED=0 go build -buildvcs=$stamp -trimpath -ldflags='-s -w' -o "$root/streamer" ./cmd/streamer

for certificates in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
	[[ -f $certificates ]] || continue
	cp "$certificates" "$root/etc/ssl/certs/ca-certificates.crt"
	exit 0
done
echo "this machine has no file of certificates; without one the image cannot talk to AWS" >&2
exit 1
