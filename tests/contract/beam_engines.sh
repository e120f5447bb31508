#!/bin/sh
# Puts engines of Beam into a folder:
#
#   tests/contract/beam_engines.sh FOLDER PYTHON [ENGINE...]
#
# Prism, Beam's runner in Go, and `container`, which starts Beam's workers, in the version of the Beam that PYTHON has, and
# job servers of Flink and Spark, with these in them. They are made of Beam's libraries, as those that Beam publishes are.
# Tests find them by SPANWISE_TEST_BEAM_ENGINES=FOLDER. ENGINE is prism, flink or spark; without any, all are put there, and `container`.
# Needs go for Prism and `container`, mvn for the others, and java to run them.
set -eu

[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
version=$("$2" -c 'from importlib.metadata import version; print(version("apache-beam"))')
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift 2
[ $# -gt 0 ] || set -- prism container flink spark
for engine in "$@"; do
    case "$engine" in
    prism) [ -x "$folder/prism" ] || GOBIN="$folder" go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$version" ;;
    container) [ -x "$folder/container" ] || GOBIN="$folder" go install "github.com/apache/beam/sdks/v2/python/container@v$version" ;;
    esac
    case "$engine" in prism | container) continue ;; esac
    [ ! -f "$folder/$engine-job-server.jar" ] || continue
    mkdir -p "$folder/$engine"
    cp "$here/${engine}_job_server/pom.xml" "$folder/$engine/"
    (cd "$folder/$engine" && mvn -q -B package)
    mv "$folder/$engine"/target/beam-$engine-*-job-server-*.jar "$folder/$engine-job-server.jar"
    rm -r "$folder/$engine"
done
