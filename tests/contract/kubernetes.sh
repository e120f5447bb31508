#!/bin/sh
# Puts Kubernetes into a folder:
#
#   tests/contract/kubernetes.sh FOLDER
#
# FOLDER/kube is the API server and the controllers as one program, FOLDER/node the kubelet, kube-proxy and the scheduler,
# FOLDER/kubectl and FOLDER/helm are clients, all built from their Go modules. Tests find them by
# SPANWISE_TEST_KUBERNETES=FOLDER/kube. Needs go; the first build takes half an hour of one processor, and 3 GiB of memory.
set -eu

[ $# -eq 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
version=1.34.2
helm=3.17.4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
for program in kube node kubectl helm; do
    [ -x "$folder/$program" ] || missing=yes
done
[ -n "${missing-}" ] || exit 0
mkdir -p "$folder/source"
cp -r "$here"/kubernetes/* "$folder/source/"
cd "$folder/source"
# The module replaces its parts with folders beside it, which are modules of their own under the proxy.
go mod download "k8s.io/kubernetes@v$version"
{
    printf 'module kube\n\ngo 1.24.0\n\n'
    sed -n 's,^\t\(k8s\.io/[^ ]*\) => ./staging/.*,replace \1 => \1 v0.'"${version#*.}"',p' \
        "$(go env GOMODCACHE)/k8s.io/kubernetes@v$version/go.mod"
} > go.mod
go get "k8s.io/kubernetes@v$version" "helm.sh/helm/v3@v$helm"
go mod tidy
# Both ask each other for their versions.
minor=${version#*.}
component=k8s.io/component-base/version
chart=helm.sh/helm/v3/pkg/chartutil
flags="-s -w -X $component.gitVersion=v$version -X $component.gitMajor=1 -X $component.gitMinor=${minor%.*}"
flags="$flags -X $chart.k8sVersionMajor=1 -X $chart.k8sVersionMinor=${minor%.*}"
build() {
    [ -x "$folder/$1" ] || nice -n 10 go build -p 1 -trimpath -ldflags "$flags" -o "$folder/$1" "$2"
}
build kube .
build node ./node
build kubectl k8s.io/kubernetes/cmd/kubectl
build helm helm.sh/helm/v3/cmd/helm
