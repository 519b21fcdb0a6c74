#!/usr/bin/env bash
# usage: engine.sh start DIR | stop DIR
#
# Runs a Docker engine of our own beside whatever the machine has: its socket, its data and its
# containerd lie in DIR, and it changes neither the firewall nor forwarding, so that containers
# reach one another and the machine's loopback, and nothing outside. Needs root and the packages
# docker.io (or another engine of version 20.10 or later), iproute2 and iptables.
#
# start prints the variables that point docker, compose and testcontainers at it. stop ends it
# and takes away what an engine leaves on a machine; DIR stays, for whoever wants its images again.
set -euo pipefail

[[ $# -eq 2 ]] || { sed -n '2,3s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command=$1
dir=$(mkdir -p "$2" && cd "$2" && pwd)
# A socket's path has 107 bytes at most, and containerd puts some of them below this one.
run=/run/$(printf 'streamer-docker-%s' "$(printf %s "$dir" | cksum | cut -d' ' -f1)")

answers() { DOCKER_HOST=unix://$run/docker.sock docker version >/dev/null 2>&1; }

start() {
	answers || {
		local bridge=yes
		ip link show docker0 >/dev/null 2>&1 || bridge=
		mkdir -p "$run"
		printf %s "$bridge" >"$run/bridge-was-there"
		# With a docker0 of somebody else's there is no default network: compose makes its own.
		dockerd --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
			${bridge:+--bridge=none} --data-root "$dir/root" --exec-root "$run/exec" \
			--host "unix://$run/docker.sock" --pidfile "$run/docker.pid" >"$dir/log" 2>&1 </dev/null &
		local started=$!
		for _ in $(seq 150); do
			answers && break
			kill -0 "$started" 2>/dev/null || break
			sleep 0.2
		done
		answers || { tail -20 "$dir/log" >&2; echo "the Docker engine did not start; its log: $dir/log" >&2; return 1; }
	}
	# A machine that is itself a container makes testcontainers look for the ports elsewhere. The
	# reaper is an image of its own, which a machine without a registry does not have.
	cat <<-VARIABLES
		export DOCKER_HOST=unix://$run/docker.sock
		export TESTCONTAINERS_RYUK_DISABLED=true
		export TESTCONTAINERS_HOST_OVERRIDE=localhost
	VARIABLES
}

stop() {
	local pid
	pid=$(cat "$run/docker.pid" 2>/dev/null) || return 0
	kill "$pid" 2>/dev/null || true
	for _ in $(seq 150); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.2
	done
	! kill -0 "$pid" 2>/dev/null || { echo "the Docker engine $pid does not stop" >&2; return 1; }
	[[ -n $(cat "$run/bridge-was-there") ]] || ip link delete docker0 2>/dev/null || true
	rmdir /sys/fs/cgroup/docker /sys/fs/cgroup/*/docker 2>/dev/null || true
	rm -rf "$run"
}

case $command in
start | stop) "$command" ;;
*) echo "unknown command $command: start or stop" >&2; exit 2 ;;
esac
