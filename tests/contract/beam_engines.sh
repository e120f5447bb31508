#!/bin/sh
# Puts Prism, Beam's runner in Go, into a folder, in the version of the Beam that a Python has:
#
#   tests/contract/beam_engines.sh FOLDER PYTHON
#
# Tests find it by SPANWISE_TEST_BEAM=FOLDER. Needs go.
set -eu

[ $# -eq 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
version=$("$2" -c 'from importlib.metadata import version; print(version("apache-beam"))')
mkdir -p "$1"
[ -x "$1/prism" ] || GOBIN=$(cd "$1" && pwd) go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$version"
