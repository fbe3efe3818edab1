//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// place makes a folder with both scripts.
func place(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"rabbitmq-server", "rabbitmqctl"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestFindServer(t *testing.T) {
	const real, wrapping = "#!/bin/sh\nexec erl", "#!/bin/sh\nexec su rabbitmq -c /usr/lib/rabbitmq/bin/rabbitmq-server"
	known := place(t, real, 0o755)
	onPath := place(t, real, 0o755)
	wrapper := place(t, wrapping, 0o755)
	plainFile := place(t, real, 0o644)
	list := func(folders ...string) string {
		path := ""
		for _, folder := range folders {
			path += folder + string(filepath.ListSeparator)
		}
		return path
	}
	for _, test := range []struct {
		name, path string
		places     []string
		want       string
	}{
		{"a known place before the PATH", list(onPath), []string{known}, known},
		{"the PATH", list(onPath), []string{"/nowhere"}, onPath},
		{"not the packages' wrapper", list(wrapper, onPath), nil, onPath},
		{"not what cannot be run", list(plainFile), []string{plainFile}, ""},
		{"none", "", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, found := findServer(test.places, test.path)
			if got.Folder != test.want || found != (test.want != "") {
				t.Fatalf("got %q, %v; want %q", got.Folder, found, test.want)
			}
		})
	}
}
