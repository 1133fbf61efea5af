// Command busyboxtar writes a small busybox image to a file, for
// "errand image import" where no registry can be reached.
package main

import (
	"fmt"
	"os"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: busyboxtar OUT.tar")
		os.Exit(2)
	}
	if err := imagetest.WriteBusybox(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "busyboxtar:", err)
		os.Exit(1)
	}
}
