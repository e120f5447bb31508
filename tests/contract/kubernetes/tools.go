//go:build tools

package main

// Programs that are built beside; helm is the newest one whose libraries are those of this version of Kubernetes.
import (
	_ "helm.sh/helm/v3/cmd/helm"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
