//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// endings are the signals that end a run. They are passed on to the command.
var endings = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// grace is the time that a command has to end after a signal.
const grace = 20 * time.Second

// command runs the command and returns its exit status. The command has a process group of its own: it gets each
// signal once, and all its child processes can be killed. For that reason it cannot read from a terminal.
func command(ctx context.Context, environment, args []string) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, endings...)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // a signal while the broker started
		return failed(ctx), ctx.Err()
	}

	process := exec.Command(args[0], args[1:]...)
	process.Env = environment
	process.Stdout, process.Stderr = os.Stdout, os.Stderr
	if about, err := os.Stdin.Stat(); err == nil && about.Mode()&os.ModeCharDevice == 0 {
		process.Stdin = os.Stdin
	}
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := process.Start(); err != nil {
		return 127, err
	}
	group := process.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	var late <-chan time.Time
	for {
		select {
		case err := <-ended:
			_ = syscall.Kill(-group, syscall.SIGKILL) // child processes that still run
			return exitStatus(err)
		case s := <-signals:
			if late != nil { // a second signal kills at once
				_ = syscall.Kill(-group, syscall.SIGKILL)
				continue
			}
			late = time.After(grace)
			_ = syscall.Kill(-group, s.(syscall.Signal))
		case <-late:
			_ = syscall.Kill(-group, syscall.SIGKILL)
		}
	}
}

func exitStatus(err error) (int, error) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		if err != nil {
			return 1, err
		}
		return 0, nil
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
