//go:build !unix

package chaos

import "syscall"

func ownGroup() *syscall.SysProcAttr { return nil }
