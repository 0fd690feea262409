// etcd, of the version in go.mod, for the benchmark `replicated`: the program that its project releases has the same main function.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
