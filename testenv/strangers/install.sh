#!/usr/bin/env bash
# usage: install.sh [ministack|moto|localstack]...      all of them if none is named
# Installs look-alikes of AWS from PyPI, each into a Python environment of its own, at the
# versions that versions.env pins. What is there already stays. They go to the folder
# STREAMER_TEST_STRANGERS (default: telemetrylake/strangers in the user's cache), where
# testenv/containers finds them; to uninstall, remove it.
#
# LocalStack needs one version of Python exactly: python3.13 on the PATH, one of pyenv's, or
# the one that LOCALSTACK_PYTHON_BIN names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../versions.env"
root=${STREAMER_TEST_STRANGERS:-${XDG_CACHE_HOME:-$HOME/.cache}/telemetrylake/strangers}
mkdir -p "$root"

is_python() { "$1" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$2')" 2>/dev/null; }

# The first Python of that version that works. What pyenv puts on the PATH may be none.
find_python() {
	local p
	for p in "${LOCALSTACK_PYTHON_BIN:-}" "python$1" python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/"python$1"; do
		if [[ -n "$p" ]] && is_python "$p" "$1"; then
			echo "$p"
			return
		fi
	done
	cat >&2 <<-END
	install localstack: there is no Python $1, which LocalStack $LOCALSTACK_VERSION needs, with its venv module.
	Install it (Debian 13: apt-get install python3-venv; else: pyenv install $1, or uv python install $1)
	or name it: LOCALSTACK_PYTHON_BIN=/path/to/python$1. Or use the image $LOCALSTACK_IMAGE with Docker.
	END
	return 1
}

# install KIND VERSION PYTHON [PIP ARGUMENT]...
install() {
	local at="$root/$1-$2" begun=$SECONDS
	if [[ -f "$at/complete" ]]; then
		echo "$1 $2 is in $at"
		return
	fi
	rm -rf "$at"
	"$3" -m venv "$at"
	"$at/bin/python" -m pip install --quiet --disable-pip-version-check "${@:4}"
	touch "$at/complete"
	echo "$1 $2 installed into $at in $((SECONDS - begun)) s"
}

(($#)) || set -- ministack moto localstack
for kind; do
	case $kind in
	ministack) install ministack "$MINISTACK_VERSION" python3 "ministack==$MINISTACK_VERSION" ;;
	moto) install moto "$MOTO_VERSION" python3 "moto[server]==$MOTO_VERSION" ;;
	localstack)
		python=$(find_python "$LOCALSTACK_PYTHON")
		IFS=, read -ra beside <<<"$LOCALSTACK_REQUIREMENTS"
		# All of them are named with their versions: left to itself, pip looks for minutes.
		install localstack "$LOCALSTACK_VERSION" "$python" --no-deps -r "$here/../localstack.txt" \
			"localstack-core==$LOCALSTACK_VERSION" "${beside[@]}"
		;;
	*)
		echo "install.sh: unknown $kind; write ministack, moto or localstack" >&2
		exit 2
		;;
	esac
done
