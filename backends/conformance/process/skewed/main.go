// Command skewed plays a role of package process. The suite builds it with another time.Now, so that the process has a
// clock that is behind.
package main

import (
	"log"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
)

func main() {
	process.Main()
	log.Fatal("skewed: the conformance suite starts this program")
}
