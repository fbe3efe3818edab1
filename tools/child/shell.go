//go:build unix

package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Shell runs a command of a shell with these arguments, and returns what it printed. A signal to this process does not
// stop it: a command that repairs a broker must complete.
func Shell(command string, args ...string) (string, error) {
	if command == "" {
		return "", errors.New("the command is not set")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	process := exec.CommandContext(ctx, "sh", append([]string{"-c", command + ` "$@"`, "sh"}, args...)...)
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var printed, faults bytes.Buffer
	process.Stdout, process.Stderr = &printed, &faults
	process.WaitDelay = time.Second // a broker that it starts may keep the pipe open
	if err := process.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return "", fmt.Errorf("%s %s: %w: %s%s", command, strings.Join(args, " "), err, &faults, &printed)
	}
	return printed.String(), nil
}
