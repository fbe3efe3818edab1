// Command api writes the exported API of each released module into a file of the folder api. Run it by `make api`.
package main

import (
	"fmt"
	"os"

	"github.com/tieredretry/watermill-retry/tools/modules"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

// write writes the files anew.
func write(root string) error {
	released, err := modules.Released(root)
	if err != nil {
		return err
	}
	for _, m := range released {
		text, err := describe(root, m)
		if err != nil {
			return err
		}
		if text == "" {
			continue // a command
		}
		if err := os.WriteFile(file(root, m), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
