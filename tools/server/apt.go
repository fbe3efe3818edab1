//go:build unix

package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// policyFile is the script that decides, during the installation of a Debian package, if the package may start its
// service.
const policyFile = "/usr/sbin/policy-rc.d"

// Usable returns the reason why no package of Debian or Ubuntu can be installed here, or "". DEVBROKER_INSTALL=no
// forbids the installation.
func Usable(ctx context.Context) (whyNot string) {
	if os.Getenv("DEVBROKER_INSTALL") == "no" {
		return "DEVBROKER_INSTALL=no forbids it"
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return "neither Debian nor Ubuntu"
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "not installed"
	}
	if asRoot(ctx, nil, "true") != nil {
		return "neither root nor sudo without a password"
	}
	return ""
}

// Install installs packages. It does nothing where there reports that another process has installed them meanwhile.
// The services stay stopped and, with systemd, disabled. The output of the commands goes to stderr.
func Install(ctx context.Context, there func() bool, packages []string, services ...string) error {
	unlock, err := lockPackages(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if there() {
		return nil
	}
	restore, err := forbidServices(ctx)
	if err != nil {
		return err
	}
	defer restore()
	for _, step := range [][]string{
		{"apt-get", "update", "-q"},
		append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-q", "-y",
			"--no-install-recommends",
			"-o", "DPkg::Lock::Timeout=300"}, packages...),
	} {
		if err := asRoot(ctx, os.Stderr, step...); err != nil {
			return err
		}
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		// the services must not start at the next boot either
		_ = asRoot(ctx, os.Stderr, append([]string{"systemctl", "disable"}, services...)...)
	}
	return nil
}

// forbidServices keeps the packages from starting their services. An existing policy belongs to the machine's owner
// and stays.
func forbidServices(ctx context.Context) (restore func(), err error) {
	if _, err := os.Lstat(policyFile); err == nil {
		return func() {}, nil
	}
	write := `printf '#!/bin/sh\nexit 101\n' >"$0" && chmod 755 "$0"`
	if err := asRoot(ctx, os.Stderr, "sh", "-c", write, policyFile); err != nil {
		return nil, err
	}
	return func() {
		if err := asRoot(context.Background(), os.Stderr, "rm", "-f", policyFile); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}, nil
}

// lockPackages lets one process install at a time.
func lockPackages(ctx context.Context) (unlock func(), err error) {
	folder, err := os.Open("/var/lib/dpkg")
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		select {
		case <-ctx.Done():
			_ = folder.Close()
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
	return func() { _ = folder.Close() }, nil
}

// asRoot runs a command as root, with sudo where needed. When ctx is done it sends SIGTERM, not SIGKILL: killing dpkg
// would leave packages half installed.
func asRoot(ctx context.Context, output *os.File, args ...string) error {
	if os.Geteuid() != 0 {
		args = append([]string{"sudo", "-n"}, args...)
	}
	process := exec.CommandContext(ctx, args[0], args[1:]...)
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return syscall.Kill(-process.Process.Pid, syscall.SIGTERM) }
	if output != nil {
		process.Stdout, process.Stderr = output, output
	}
	if err := process.Run(); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
