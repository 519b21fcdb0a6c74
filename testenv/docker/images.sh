#!/usr/bin/env bash
# usage: images.sh DIR        (DOCKER_HOST names an engine of ours; root)
#
# Builds, from packages alone, the images that docker-compose.yml names and a registry would give:
# LocalStack's from PyPI, Prometheus' from Debian, under the very tags. Meant for an engine of our
# own (engine.sh), where nobody takes them for the published ones. Needs debootstrap. What it has
# made it keeps in DIR; an image that the engine has is left alone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../versions.env
. "$here/../versions.env"

[[ $# -eq 1 ]] || { sed -n '2s/^# \{0,1\}//p' "$0" >&2; exit 2; }
dir=$(mkdir -p "$1" && cd "$1" && pwd)
root=$dir/rootfs

# have says whether the engine has an image, or else whether DIR has it kept.
have() {
	docker image inspect "$1" >/dev/null 2>&1 && return
	[[ -f $dir/${1//[\/:]/_}.tar ]] && docker load -q -i "$dir/${1//[\/:]/_}.tar"
}
keep() { docker save -o "$dir/${1//[\/:]/_}.tar" "$1"; }

# A Debian with the Python that LocalStack asks for, from the mirror that this machine uses.
debian() {
	[[ -f $root/.complete ]] && return
	local mirror
	mirror=$(awk '!found && $1 == "URIs:" {print $2; found = 1}
		!found && $1 == "deb" {for (i = 2; i <= NF && !found; i++) if ($i ~ /^https?:/) {print $i; found = 1}}' \
		/dev/null $(find /etc/apt/sources.list /etc/apt/sources.list.d -name 'debian.sources' -o -name sources.list 2>/dev/null))
	rm -rf "$root"
	debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,prometheus \
		"$IMAGES_DEBIAN" "$root" ${mirror:+"$mirror"} >"$dir/debootstrap.log" 2>&1 ||
		{ tail -5 "$dir/debootstrap.log" >&2; return 1; }
	# What the machine trusts its package index with.
	cat /etc/ssl/certs/ca-certificates.crt >"$root/tmp/ca.crt"
	cp -L /etc/resolv.conf "$root/etc/resolv.conf"
	touch "$root/.complete"
}

# run runs a command in it. It is no container: it shares the machine's network.
run() {
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 PIP_CERT=/tmp/ca.crt \
		PIP_INDEX_URL="${PIP_INDEX_URL:-}" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
		chroot "$root" "$@"
}

localstack() {
	local have requirements
	have=$(run python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	[[ $have == "$LOCALSTACK_PYTHON" ]] ||
		{ echo "$IMAGES_DEBIAN has Python $have, LocalStack asks for $LOCALSTACK_PYTHON" >&2; return 1; }
	IFS=, read -ra requirements <<<"$LOCALSTACK_REQUIREMENTS"
	run python3 -m venv /opt/localstack
	cp "$here/../localstack.txt" "$root/tmp/"
	run /opt/localstack/bin/pip install -q --no-cache-dir --no-deps -r /tmp/localstack.txt \
		"localstack-core[runtime]==$LOCALSTACK_VERSION" "${requirements[@]}"
	run /opt/localstack/bin/pip check >/dev/null
	tar -C "$root" --exclude=./tmp/* --exclude=./var/cache/apt --exclude=./var/lib/prometheus \
		--exclude=./usr/bin/prom* --exclude=./etc/resolv.conf -c . | docker import \
		--change 'ENV PATH=/opt/localstack/bin:/usr/sbin:/usr/bin:/sbin:/bin GATEWAY_LISTEN=0.0.0.0:4566 FILESYSTEM_ROOT=/var/lib/localstack SKIP_SSL_CERT_DOWNLOAD=1 DNS_ADDRESS=0 DISABLE_EVENTS=1' \
		--change 'EXPOSE 4566' \
		--change 'CMD ["python", "-m", "localstack.runtime.main"]' - "$LOCALSTACK_IMAGE" >/dev/null
}

prometheus() {
	local version
	version=$(run prometheus --version | awk 'NR == 1 {print $3}')
	version=${version%%+*}
	[[ $PROMETHEUS_IMAGE == *:v$version ]] ||
		{ echo "$IMAGES_DEBIAN has Prometheus $version, $PROMETHEUS_IMAGE is named" >&2; return 1; }
	# Where the published image has them: the program, promtool, the folder it may write to.
	mkdir -p "$root/prometheus"
	chown 65534:65534 "$root/prometheus"
	tar -C "$root" --exclude=./tmp/* --exclude=./var/cache/apt --exclude=./opt/localstack \
		--exclude=./etc/resolv.conf -c . | docker import \
		--change 'USER 65534' --change 'WORKDIR /prometheus' --change 'EXPOSE 9090' \
		--change 'ENTRYPOINT ["/bin/prometheus"]' \
		--change 'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]' - "$PROMETHEUS_IMAGE" >/dev/null
}

for image in "$LOCALSTACK_IMAGE=localstack" "$PROMETHEUS_IMAGE=prometheus"; do
	tag=${image%=*} build=${image##*=}
	have "$tag" && continue
	echo "building $tag from packages"
	debian
	"$build"
	keep "$tag"
done
rm -rf "$root"
