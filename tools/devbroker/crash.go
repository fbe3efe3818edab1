//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// makeCrashable adds the commands that kill the node and start it again.
func (n *node) makeCrashable(variables map[string]string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	for name, verb := range map[string]string{"BROKER_KILL": "kill", "BROKER_START": "start"} {
		variables[name] = quote(self) + " " + verb + " " + quote(n.Folder)
	}
	return os.WriteFile(n.file("node.json"), text, 0o600)
}

func crash(ctx context.Context, verb, folder string) (int, error) {
	text, err := os.ReadFile(filepath.Join(folder, "node.json"))
	if err != nil {
		return 1, err
	}
	var n node
	if err := json.Unmarshal(text, &n); err != nil {
		return 1, err
	}
	if verb == "kill" {
		n.kill()
		return 0, nil
	}
	if len(processes(n.marker())) > 0 {
		return 0, nil // it runs
	}
	if err := n.start(ctx); err != nil {
		return 1, n.explain(err)
	}
	return 0, nil
}

// kill kills all processes with the node's marker, and returns when they have ended.
func (n *node) kill() {
	for range 100 {
		found := processes(n.marker())
		if len(found) == 0 {
			return
		}
		for _, pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
