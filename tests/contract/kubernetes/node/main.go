// What runs on a machine of Kubernetes, and the scheduler, as one program; its first argument names which.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := os.Args[1]
	os.Args = os.Args[1:]
	switch name {
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	}
	os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
}
