//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestStateFileIsAtTheTopOfTheProject(t *testing.T) {
	file, err := stateFile()
	if err != nil {
		t.Fatal(err)
	}
	top := filepath.Dir(filepath.Dir(file))
	if _, err := os.Stat(filepath.Join(top, "go.mod")); err != nil {
		t.Errorf("the state file is %s: %v", file, err)
	}
}
