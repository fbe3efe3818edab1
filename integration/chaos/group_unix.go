//go:build unix

package main

import "syscall"

// ownGroup protects a command that repairs the broker from Ctrl-C.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
