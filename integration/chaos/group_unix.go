//go:build unix

package chaos

import "syscall"

// ownGroup keeps Ctrl-C from a command that repairs the broker.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
