#!/bin/sh
# Runs a command beside servers of S3, Azure Blob Storage and Google Cloud Storage, and stops them when it has ended:
#
#   tests/contract/buckets.sh FOLDER python -m pytest tests/contract/test_bucket.py
#
# They are installed in FOLDER, if they are not there yet, listen on the loopback interface only and keep their objects
# in a temporary folder. The command finds them in SPANWISE_TEST_S3 and SPANWISE_TEST_AZ.
# Servers of Google's protocol are in no registry, so they are used where these variables name their programs:
# SPANWISE_TEST_FAKE_GCS that of fake-gcs-server in the fork that has the XML interface (tustvold/fake-gcs-server,
# branch support-xml-api, 46f2f72), which the command finds in SPANWISE_TEST_GS, behind google_front.py;
# SPANWISE_TEST_STORAGE_TESTBENCH that of Google's storage-testbench, found in SPANWISE_TEST_GS_TESTBENCH.
# Needs go, npm and python3.
set -eu

[ $# -gt 1 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
tools=$(cd "$1" && pwd)
shift

[ -x "$tools/versitygw" ] || GOBIN="$tools" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
[ -x "$tools/node_modules/.bin/azurite-blob" ] || npm install --silent --no-fund --prefix "$tools" azurite@3

place=$(mktemp -d)
pids=''
here=$(cd "$(dirname "$0")/../.." && pwd)
stop() {
    # Not asked to end: one that waits for a connection, or whose exit code is not 0, would end this script here.
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || :; wait "$pid" 2>/dev/null || :; done
    rm -rf "$place"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

wait_for_port() {
    for _ in $(seq 300); do
        if python3 -c "import socket; socket.create_connection(('127.0.0.1', $1), 1)" 2>/dev/null; then return; fi
        sleep 0.1
    done
    echo "The server on port $1 did not come up in 30 s:" >&2
    tail -n 20 "$place"/*.log >&2
    exit 1
}

s3_port=$(free_port)
mkdir -p "$place/s3/lake" "$place/properties"
"$tools/versitygw" --access test --secret testtest --port "127.0.0.1:$s3_port" \
    posix --sidecar "$place/properties" "$place/s3" >"$place/s3.log" 2>&1 &
pids=$!

az_port=$(free_port)
"$tools/node_modules/.bin/azurite-blob" --blobHost 127.0.0.1 --blobPort "$az_port" --location "$place/az" --silent \
    --skipApiVersionCheck --disableTelemetry >"$place/az.log" 2>&1 &
pids="$pids $!"

wait_for_port "$s3_port"
wait_for_port "$az_port"

# The account and key of every Azurite; a container is made by a signed request.
python3 - "$az_port" <<'END'
import base64, datetime, hashlib, hmac, sys, urllib.request

account = "devstoreaccount1"
key = base64.b64decode("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-12-02\n/{account}/{account}/lake\nrestype:container"
signature = base64.b64encode(hmac.new(key, signed.encode(), hashlib.sha256).digest()).decode()
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/{account}/lake?restype=container", method="PUT")
request.add_header("x-ms-date", date)
request.add_header("x-ms-version", "2021-12-02")
request.add_header("Authorization", f"SharedKey {account}:{signature}")
urllib.request.urlopen(request)
END

export SPANWISE_TEST_S3="{\"home\": \"s3://lake\", \"AWS_ACCESS_KEY_ID\": \"test\", \"AWS_SECRET_ACCESS_KEY\": \"testtest\", \"AWS_REGION\": \"us-east-1\", \"AWS_ENDPOINT_URL\": \"http://127.0.0.1:$s3_port\"}"
export SPANWISE_TEST_AZ="{\"home\": \"az://lake\", \"AZURE_STORAGE_USE_EMULATOR\": \"true\", \"AZURITE_BLOB_STORAGE_URL\": \"http://127.0.0.1:$az_port\"}"

# An account of Google's is a text of JSON in one variable.
account() {
    python3 - "$1" "$2" <<'END'
import json, sys

unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
key = {"gcs_base_url": f"http://127.0.0.1:{sys.argv[2]}", "disable_oauth": True, **unused}
print(json.dumps({"home": f"gs://{sys.argv[1]}", "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}))
END
}

if [ -n "${SPANWISE_TEST_FAKE_GCS:-}" ]; then
    gs_port=$(free_port)
    behind=$(free_port)
    mkdir -p "$place/gs/lake"
    "$SPANWISE_TEST_FAKE_GCS" -backend filesystem -filesystem-root "$place/gs" -scheme http -host 127.0.0.1 -port "$behind" \
        -public-host "127.0.0.1:$gs_port" -external-url "http://127.0.0.1:$gs_port" -log-level error >"$place/gs.log" 2>&1 &
    pids="$pids $!"
    wait_for_port "$behind"
    (cd "$here" && exec python3 -m tests.contract.google_front "$gs_port" "http://127.0.0.1:$behind") >"$place/front.log" 2>&1 &
    pids="$pids $!"
    wait_for_port "$gs_port"
    SPANWISE_TEST_GS=$(account lake "$gs_port")
    export SPANWISE_TEST_GS
fi
if [ -n "${SPANWISE_TEST_STORAGE_TESTBENCH:-}" ]; then
    testbench_port=$(free_port)
    "$SPANWISE_TEST_STORAGE_TESTBENCH" --port "$testbench_port" >"$place/testbench.log" 2>&1 &
    pids="$pids $!"
    wait_for_port "$testbench_port"
    python3 - "$testbench_port" <<'END'
import sys, urllib.request

address = f"http://127.0.0.1:{sys.argv[1]}/storage/v1/b?project=p"
urllib.request.urlopen(urllib.request.Request(address, b'{"name": "lake"}', {"Content-Type": "application/json"}))
END
    SPANWISE_TEST_GS_TESTBENCH=$(account lake "$testbench_port")
    export SPANWISE_TEST_GS_TESTBENCH
fi

status=0
"$@" || status=$?
exit "$status"
