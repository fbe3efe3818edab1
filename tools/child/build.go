package child

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// WithProgram builds the program in a folder, and returns what run returns, which gets its path. The program is removed
// then. Where it cannot be built, the reason is printed, and the result is 1.
func WithProgram(folder string, run func(program string) int) int {
	place, err := os.MkdirTemp("", "program-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(place) }()
	program := filepath.Join(place, "program")
	if output, err := exec.Command("go", "build", "-C", folder, "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, output)
		return 1
	}
	return run(program)
}
