#!/bin/sh
# Puts engines of Beam into a folder:
#
#   tests/contract/beam_engines.sh FOLDER PYTHON
#
# Prism, Beam's runner in Go, in the version of the Beam that PYTHON has, and a job server of Flink, with Flink in it.
# The latter is made of Beam's libraries, as the one that Beam publishes is.
# Tests find them by SPANWISE_TEST_BEAM=FOLDER. Needs go and mvn, and java to run.
set -eu

[ $# -eq 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
version=$("$2" -c 'from importlib.metadata import version; print(version("apache-beam"))')
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ -x "$folder/prism" ] || GOBIN="$folder" go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$version"
if [ ! -f "$folder/flink-job-server.jar" ]; then
    mkdir -p "$folder/flink"
    cp "$here/flink_job_server/pom.xml" "$folder/flink/"
    (cd "$folder/flink" && mvn -q -B package)
    mv "$folder"/flink/target/beam-flink-*-job-server-*.jar "$folder/flink-job-server.jar"
    rm -r "$folder/flink"
fi
