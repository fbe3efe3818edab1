package server

import "syscall"

// endWithParent makes the kernel send the signal to the server when this process dies.
func endWithParent(attributes *syscall.SysProcAttr, ending syscall.Signal) {
	attributes.Pdeathsig = ending
}
