//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// stateFile is .broker/state.json: beside this program, which is built for one checkout. It describes the broker that
// up started.
func stateFile() (string, error) {
	program, err := os.Executable()
	return filepath.Join(filepath.Dir(program), "state.json"), err
}

func (b broker) save() error {
	if b.Node == nil && b.Container == "" {
		return nil // this program has not started the broker, and must not stop it
	}
	file, err := stateFile()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

func saved() (broker, error) {
	var b broker
	file, err := stateFile()
	if err != nil {
		return b, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(text, &b)
}

func forget() error {
	file, err := stateFile()
	if err != nil {
		return err
	}
	return os.Remove(file)
}

// isUp reports whether the broker that up started still answers. If it does not, isUp removes its processes and data.
func isUp() bool {
	b, err := saved()
	if err != nil {
		return false
	}
	if b.handshake() == nil {
		return true
	}
	say("the broker that up started no longer answers: removing its processes and data")
	b.stop()
	_ = forget()
	return false
}

// borrowed returns the broker that up started. Its stop has no effect: only down stops it.
func borrowed() (broker, error) {
	b, err := saved()
	b.Node, b.Container = nil, ""
	return b, err
}
