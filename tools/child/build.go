package child

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds the program in a folder, without cgo, as it is released.
func Build(folder, program string) error {
	command := exec.Command("go", "build", "-C", folder, "-o", program, ".")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("go build -C %s: %w\n%s", folder, err, output)
	}
	return nil
}

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
	if err := Build(folder, program); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run(program)
}
