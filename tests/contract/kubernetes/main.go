// The API server and the controllers of Kubernetes as one program; its first argument names which.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	name := os.Args[1]
	os.Args = os.Args[1:]
	if name == "kube-apiserver" {
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	}
	os.Exit(cli.Run(manager.NewControllerManagerCommand()))
}
