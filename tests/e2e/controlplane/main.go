// One program that is etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, so that the end-to-end tests meet the real Kubernetes code
// without containers, privileges or downloads of prebuilt binaries.
//
// It acts as the component it is called as: the links that binaries.py makes
// beside it carry the components' names. Called by any other name, its first
// argument names the component:
//
//	controlplane kube-scheduler --config=...
//
// Linking them together costs one link step instead of four, and most of the
// code is shared. Nothing of Tessera's own may enter this file.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// components holds constructors, not commands: building a command registers
// feature gates and flags in process-wide tables, so only one may be built.
var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	name, args := called(os.Args)
	if name == "etcd" {
		etcdmain.Main(append([]string{name}, args...))
		return
	}
	component, known := components[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%q is none of etcd, kube-apiserver, kube-controller-manager, kube-scheduler\n", name)
		os.Exit(2)
	}
	command := component()
	command.SetArgs(args)
	os.Exit(cli.Run(command))
}

// called tells which component is meant and which arguments are left for it.
func called(argv []string) (string, []string) {
	name := filepath.Base(argv[0])
	if name == "etcd" || strings.HasPrefix(name, "kube-") {
		return name, argv[1:]
	}
	if len(argv) > 1 {
		return argv[1], argv[2:]
	}
	return name, nil
}
