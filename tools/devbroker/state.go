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

// stateFile is .broker/state.json at the top of the project. It describes the broker that up started for this checkout.
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
			return "", errors.New("the folder " + folder + " is not in the project: run devbroker there")
		}
	}
}

func (b broker) save() error {
	if b.Node == nil && b.Container == "" {
		return nil // this program has not started the broker, and must not stop it
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

// isUp reports whether the broker that up started still answers. If it does not, isUp removes its processes and data.
func isUp(ctx context.Context) bool {
	b, err := saved()
	if err != nil {
		return false
	}
	uri, err := url.Parse(b.Variables["AMQP_URL"])
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if handshake(ctx, uri) == nil {
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
