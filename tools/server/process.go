//go:build unix

package server

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a server's process. It is in a process group of its own: Ctrl-C reaches only this process, which then
// stops the server.
type Process struct {
	command *exec.Cmd
	folder  string          // its data
	ending  syscall.Signal  // ends the server, with its child processes, at once
	Ended   <-chan struct{} // closed when the process has ended
	once    sync.Once
}

// Run starts a command whose output goes to a file in the folder.
func Run(folder string, credential *syscall.Credential, ending syscall.Signal, name string, args ...string) (*Process,
	error) {
	output, err := os.Create(filepath.Join(folder, "output"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }()
	ended := make(chan struct{})
	p := &Process{command: exec.Command(name, args...), folder: folder, ending: ending, Ended: ended}
	p.command.Dir = folder
	p.command.Stdout, p.command.Stderr = output, output
	p.command.SysProcAttr = Attributes(credential, ending)
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.command.Wait()
		close(ended)
	}()
	return p, nil
}

// Attributes are those of a process in a process group of its own, of another user where credential is not nil. On
// Linux the kernel sends it the signal when this process dies.
func Attributes(credential *syscall.Credential, ending syscall.Signal) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true, Credential: credential}
	endWithParent(attributes, ending)
	return attributes
}

// Stop ends the process and removes its folder. The data is not used again: the server need not shut down in order.
func (p *Process) Stop() {
	p.once.Do(func() {
		_ = p.command.Process.Signal(p.ending)
		select {
		case <-p.Ended:
		case <-time.After(5 * time.Second):
		}
		_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
		<-p.Ended
		_ = os.RemoveAll(p.folder)
	})
}

// Kill ends the process as a crash does, and keeps its folder: Run can start it again there.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
	<-p.Ended
}

// Explain stops the server and adds the end of its output to an error.
func (p *Process) Explain(server string, cause error) error {
	output, _ := os.ReadFile(filepath.Join(p.folder, "output"))
	p.Stop()
	lines := strings.Split(string(bytes.TrimSpace(output)), "\n")
	return fmt.Errorf("a private %s did not start: %w; the end of its output: %s", server, cause,
		strings.Join(lines[max(0, len(lines)-5):], " | "))
}
