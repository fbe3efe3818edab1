package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	module   = "github.com/tieredretry/watermill-retry"
	sampling = 10 * time.Millisecond
)

// measureMemory runs wmretry as a process of its own.
func (b bench) measureMemory(ctx context.Context) (claims []string, err error) {
	binary, err := build(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(filepath.Dir(binary)) }()
	q, err := b.declare()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, q.remove()) }()
	if err := q.fill(ctx, b.letters, b.size); err != nil {
		return nil, err
	}
	fmt.Printf("wmretry on %d letters with a body of %d bytes:\n", b.letters, b.size)
	highest := 0.0
	for _, command := range []string{"list", "redrive"} {
		used, err := b.run(ctx, binary, command, q.work)
		if err != nil {
			return nil, err
		}
		highest = max(highest, used)
	}
	if highest == 0 {
		fmt.Println("  this system has no /proc: the memory is not measured")
		return nil, nil
	}
	return []string{claim("redrive_memory", "MiB", highest, targetMemory, highest < targetMemory)}, nil
}

// build builds the command, which is a module of its own.
func build(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("cannot find the module (run redrivebench in the folder integration): %w", err)
	}
	folder, err := os.MkdirTemp("", "redrivebench-")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(folder, "wmretry")
	command := exec.CommandContext(ctx, "go", "build", "-o", binary, ".")
	command.Dir = filepath.Join(strings.TrimSpace(string(root)), "cmd", "wmretry")
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build wmretry: %w\n%s", err, output)
	}
	return binary, nil
}

// run runs a command on all letters, and returns its highest resident memory in MiB.
func (b bench) run(ctx context.Context, binary, name, work string) (float64, error) {
	command := exec.CommandContext(ctx, binary, "dead", name, work)
	command.Env = append(os.Environ(), "AMQP_URL="+b.uri)
	var errors strings.Builder
	command.Stderr = &errors
	output, err := command.StdoutPipe()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := command.Start(); err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	highest := make(chan float64)
	go func() { highest <- watch(command.Process.Pid, ended) }()
	reader := bufio.NewReader(output)
	_, firstErr := reader.ReadString('\n')
	first := time.Since(begun)
	_, copyErr := io.Copy(io.Discard, reader)
	close(ended)
	used := <-highest
	if err := command.Wait(); err != nil {
		return 0, fmt.Errorf("wmretry dead %s: %w\n%s", name, err, errors.String())
	}
	if firstErr != nil || copyErr != nil {
		return 0, fmt.Errorf("wmretry dead %s has no output: %w", name, firstErr)
	}
	took := time.Since(begun)
	fmt.Printf("  dead %-8s %5.1f MiB, %v, %.0f/s, first line of output after %v\n", name, used, took.Round(10*time.Millisecond), float64(b.letters)/took.Seconds(),
		first.Round(time.Millisecond))
	return used, nil
}

// watch returns the highest resident memory of a process until it has ended, in MiB, and 0 where the system does not show it.
func watch(process int, ended <-chan struct{}) float64 {
	highest := 0.0
	for {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(process) + "/status")
		if err == nil {
			highest = max(highest, field(string(status), "VmHWM:")/1024)
		}
		select {
		case <-ended:
			return highest
		case <-time.After(sampling):
		}
	}
}

// field returns a number of kB in a process's status.
func field(status, name string) float64 {
	_, rest, found := strings.Cut(status, name)
	if !found {
		return 0
	}
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kilobytes, _ := strconv.ParseFloat(number, 64)
	return kilobytes
}
