package servers

import "syscall"

// endWithParent: the kernel ends the server where this process is killed.
func endWithParent(attributes *syscall.SysProcAttr, ending syscall.Signal) {
	attributes.Pdeathsig = ending
}
