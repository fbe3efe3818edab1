//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// stateFile tells of the broker that up started: .broker/state.json at the top of the project, for this checkout only.
func stateFile() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for top := folder; ; top = filepath.Dir(top) {
		if _, err := os.Stat(filepath.Join(top, "tools", "devbroker")); err == nil {
			return filepath.Join(top, ".broker", "state.json"), nil
		}
		if top == filepath.Dir(top) {
			return "", errors.New("run it inside the project: " + folder + " is not")
		}
	}
}

func (b broker) save() error {
	if b.Node == nil && b.Container == "" {
		return nil // not ours to stop
	}
	file, err := stateFile()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
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

// isUp tells whether the broker that up started still answers. What is left of one that does not is cleared away.
func isUp(ctx context.Context) bool {
	b, err := saved()
	if err != nil {
		return false
	}
	uri, err := url.Parse(b.URL)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if handshake(ctx, uri) == nil {
		return true
	}
	say("the broker started by up no longer answers: clearing it away")
	b.stop()
	_ = forget()
	return false
}

// borrowed is the broker that up started. Whoever uses it does not stop it.
func borrowed() (broker, error) {
	b, err := saved()
	b.Node, b.Container = nil, ""
	return b, err
}
