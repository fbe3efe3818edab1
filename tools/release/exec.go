package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
)

// output runs a command and returns what it prints. Its error has the command and its errors.
func output(dir string, environment []string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Env = dir, environment
	var stderr bytes.Buffer
	c.Stderr = &stderr
	stdout, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return string(stdout), nil
}

func command(dir string, environment []string, name string, args ...string) error {
	_, err := output(dir, environment, name, args...)
	return err
}

func git(dir string, args ...string) (string, error) {
	text, err := output(dir, nil, "git", args...)
	return strings.TrimSpace(text), err
}

func goEnv(name string) string {
	text, _ := output("", nil, "go", "env", name)
	return strings.TrimSpace(text)
}
