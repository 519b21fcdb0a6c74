#!/usr/bin/env bash
# usage: check.sh
#
# Proves what needs Docker: the test that has LocalStack by testcontainers, and the stack of
# docker-compose.yml with all readings of STREAMER_TEST_READINGS, or as many generated ones, going
# through it. Uses the Docker engine that DOCKER_HOST or the machine has, with images from its
# registry; where none answers it starts one of its own (root; Debian's docker.io, docker-compose
# and debootstrap, which it installs) and builds the images from packages. Needs Go and gcc too.
#
# Nothing is left behind, but with KEEP=DIR the images that it built, for the next time. Its
# last lines say what was run, and what not. Ten to fifteen minutes on two cores, three of them for images.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
# shellcheck source=../versions.env
. "$here/../versions.env"
begun=$SECONDS

# The real readings, where they lie beside the checkout.
readings="$PWD/../shared/data/room-climate-a.csv.gz"
if [[ -z "${STREAMER_TEST_READINGS:-}" && -f "$readings" ]]; then
	export STREAMER_TEST_READINGS="$readings"
fi
# What else is set is for programs, and here would be for the tests.
for name in ${!STREAMER_@} ${!AWS_@}; do
	[[ $name == STREAMER_TEST_* ]] || unset "$name"
done
export STREAMER_TEST_ROWS=${STREAMER_TEST_ROWS:-all} COMPOSE_PROFILES=localstack,metrics

work=$(mktemp -d)
private= up=
compose() { "${composer[@]}" --project-name streamer-check "$@"; }

leave() {
	local status=$?
	trap - EXIT
	set +e
	if [[ -n $up ]]; then
		((status == 0)) || compose logs --tail 30 >&2
		compose --profile embedded down --volumes --timeout 30 >/dev/null 2>&1
		docker image rm telemetrylake/streamer:local >/dev/null 2>&1
	fi
	[[ -z $private ]] || "$here/engine.sh" stop "$work/engine" || status=1
	rm -rf "$work" || status=1
	((status == 0)) || echo "docker-check: FAILED after $((SECONDS - begun)) s" >&2
	exit "$status"
}
trap leave EXIT
trap 'exit 1' INT TERM

step() { echo "--- $* ($((SECONDS - begun)) s)"; }

# An engine, and compose: version 2 where docker has it, else Debian's.
if docker version >/dev/null 2>&1; then
	step "using the Docker engine that answers"
else
	[[ $(id -u) == 0 ]] || { echo "no Docker engine answers: start one, or run this as root" >&2; exit 1; }
	missing=()
	for package in dockerd=docker.io debootstrap=debootstrap docker-compose=docker-compose ip=iproute2; do
		command -v "${package%=*}" >/dev/null || missing+=("${package#*=}")
	done
	if ((${#missing[@]})); then
		step "installing ${missing[*]}"
		{ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$work/apt.log" 2>&1 ||
			{ tail -20 "$work/apt.log" >&2; exit 1; }
	fi
	step "starting a Docker engine"
	private=yes
	variables=$("$here/engine.sh" start "$work/engine")
	eval "$variables"
fi
composer=(docker compose)
docker compose version >/dev/null 2>&1 || composer=(docker-compose)

step "images"
if [[ -n $private ]]; then
	"$here/images.sh" "${KEEP:-$work/images}"
else
	docker pull -q "$LOCALSTACK_IMAGE"
	docker pull -q "$PROMETHEUS_IMAGE"
fi
"$here/rootfs.sh" "$work/image"
docker build -q --target prebuilt -t telemetrylake/streamer:local -f Dockerfile "$work/image" 2>/dev/null
rm -rf "$work/image"
docker run --rm --network none --read-only telemetrylake/streamer:local version

step "LocalStack by testcontainers"
go test -tags integration ./cmd/streamer -count 1 -v -timeout 25m -run '^TestMainJob$/^localstack_container$' >"$work/contained" 2>&1 ||
	{ grep -v '^=== ' "$work/contained" >&2; exit 1; }
grep -E '^ok|^ *--- ' "$work/contained"
containers=$(docker ps -aq)
[[ -z $private || -z $containers ]] || { echo "containers are left: $containers" >&2; exit 1; }

# Ports of our own: a stack that is up for other reasons goes on.
export LOCALSTACK_PORT=24566 AWS_PORT=24588 STREAMER_PORT=28080 PROMETHEUS_PORT=29090
step "compose up"
up=yes
compose up -d --no-build localstack aws run prometheus >"$work/up" 2>&1 || { cat "$work/up" >&2; exit 1; }
compose ps

# What docker itself says of it.
for service in aws run; do
	looks=$(docker inspect --format '{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}}' "$(compose ps -q "$service")")
	[[ $looks == "65532:65532 true [ALL] [no-new-privileges:true]" ]] || { echo "$service runs as $looks" >&2; exit 1; }
done
for port in "$LOCALSTACK_PORT" "$AWS_PORT" "$STREAMER_PORT" "$PROMETHEUS_PORT"; do
	listening=$(ss -Hltn "sport = :$port" | awk '{print $4}')
	[[ $listening == "127.0.0.1:$port" ]] || { echo "port $port is listened to on ${listening:-nothing}" >&2; exit 1; }
done

step "readings, from the table into the lake"
endpoint() { echo "AWS_ENDPOINT_URL_$1=http://127.0.0.1:$2"; }
env AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test \
	"$(endpoint DYNAMODB "$AWS_PORT")" "$(endpoint DYNAMODB_STREAMS "$AWS_PORT")" \
	"$(endpoint FIREHOSE "$LOCALSTACK_PORT")" "$(endpoint S3 "$LOCALSTACK_PORT")" \
	go test -tags integration ./cmd/streamer -count 1 -v -timeout 25m -run '^TestAStandingStack' >"$work/composed" 2>&1 ||
	{ grep -v '^=== ' "$work/composed" >&2; exit 1; }
grep -E '^ok|^ *--- ' "$work/composed"
for page in readyz integrity; do
	compose exec -T run /streamer ping "http://127.0.0.1:8080/$page" </dev/null
done

# Prometheus has what the run tells, and understands every panel of the dashboard.
ask() { compose exec -T prometheus promtool query instant http://127.0.0.1:9090 "$1" </dev/null; }
sleep 11 # two scrapes
panels=0
while IFS= read -r query; do
	ask "${query//\$__rate_interval/1m}" >"$work/answer" 2>&1 || { echo "$query: $(cat "$work/answer")" >&2; exit 1; }
	[[ -s $work/answer ]] || { echo "$query: no answer" >&2; exit 1; }
	panels=$((panels + 1))
done < <(sed -n 's/^ *"expr": "\(.*\)",\{0,1\}$/\1/p' "$here/grafana/dashboards/telemetrylake.json" | sed 's/\\"/"/g')
((panels)) || { echo "the dashboard asks nothing" >&2; exit 1; }
rows=$(ask 'streamer_lake_rows_total' | sed 's/.*=> \([0-9]*\).*/\1/')

step "compose stop"
compose stop --timeout 30 run >/dev/null 2>&1
code=$(docker inspect --format '{{.State.ExitCode}}' "$(compose ps -aq run 2>/dev/null || compose ps -q run)")
[[ $code == 0 ]] || { echo "the run ended with code $code" >&2; exit 1; }
compose down --volumes >/dev/null 2>&1
[[ -z $private || -z $(docker ps -aq; docker volume ls -q) ]] || { echo "left behind:" >&2; docker ps -a >&2; docker volume ls >&2; exit 1; }

echo "--- docker-check: $((SECONDS - begun)) s"
sed -n 's/^=== ATTR  [^ ]* job /by testcontainers: /p' "$work/contained"
sed -n 's/^=== ATTR  [^ ]* job /composed: /p' "$work/composed"
echo "composed: Prometheus counted $rows rows into the lake and answered the dashboard's $panels queries"
echo "not run: Grafana, whose image no package has"
