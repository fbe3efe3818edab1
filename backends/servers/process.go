//go:build unix

package servers

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

// process is a server's process. It is in a process group of its own: Ctrl-C reaches only this process, which then stops the server.
type process struct {
	command *exec.Cmd
	folder  string         // its data
	ending  syscall.Signal // ends the server, with its child processes, at once
	ended   chan struct{}
	once    sync.Once
}

// run starts a command whose output goes to a file in the folder.
func run(folder string, credential *syscall.Credential, ending syscall.Signal, name string, args ...string) (*process, error) {
	output, err := os.Create(filepath.Join(folder, "output"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }()
	p := &process{command: exec.Command(name, args...), folder: folder, ending: ending, ended: make(chan struct{})}
	p.command.Dir = folder
	p.command.Stdout, p.command.Stderr = output, output
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: credential}
	endWithParent(p.command.SysProcAttr, ending)
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop ends the process and removes its folder. The data is not used again: the server need not shut down in order.
func (p *process) stop() {
	p.once.Do(func() {
		_ = p.command.Process.Signal(p.ending)
		select {
		case <-p.ended:
		case <-time.After(5 * time.Second):
		}
		_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
		<-p.ended
		_ = os.RemoveAll(p.folder)
	})
}

// explain stops the server and adds the end of its output to an error.
func (p *process) explain(server string, cause error) error {
	output, _ := os.ReadFile(filepath.Join(p.folder, "output"))
	p.stop()
	lines := strings.Split(string(bytes.TrimSpace(output)), "\n")
	return fmt.Errorf("a private %s did not start: %w; the end of its output: %s", server, cause,
		strings.Join(lines[max(0, len(lines)-5):], " | "))
}
