#!/bin/sh
# Puts engines of Beam into a folder:
#
#   tests/contract/beam_engines.sh FOLDER PYTHON
#
# Prism, Beam's runner in Go, in the version of the Beam that PYTHON has, and job servers of Flink and Spark, with these
# in them. They are made of Beam's libraries, as those that Beam publishes are.
# Tests find them by SPANWISE_TEST_BEAM=FOLDER. Needs go and mvn, and java to run.
set -eu

[ $# -eq 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
version=$("$2" -c 'from importlib.metadata import version; print(version("apache-beam"))')
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ -x "$folder/prism" ] || GOBIN="$folder" go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$version"
for engine in flink spark; do
    [ ! -f "$folder/$engine-job-server.jar" ] || continue
    mkdir -p "$folder/$engine"
    cp "$here/${engine}_job_server/pom.xml" "$folder/$engine/"
    (cd "$folder/$engine" && mvn -q -B package)
    mv "$folder/$engine"/target/beam-$engine-*-job-server-*.jar "$folder/$engine-job-server.jar"
    rm -r "$folder/$engine"
done
