//go:build unix

package main

import (
	"bytes"
	"os"
	"path/filepath"
)

// installed is the folder that holds rabbitmq-server and rabbitmqctl.
type installed struct{ Folder string }

func (i installed) script(name string) string { return filepath.Join(i.Folder, name) }

func serverPlaces() []string {
	return []string{
		"/usr/lib/rabbitmq/bin", // Debian, Ubuntu, Fedora
		"/opt/homebrew/sbin",
		"/opt/homebrew/opt/rabbitmq/sbin",
		"/usr/local/sbin",
		"/usr/local/opt/rabbitmq/sbin",
	}
}

func findServer(places []string, path string) (installed, bool) {
	for _, folder := range append(places, filepath.SplitList(path)...) {
		candidate := installed{folder}
		if folder != "" && usable(candidate.script("rabbitmq-server")) && usable(candidate.script("rabbitmqctl")) {
			return candidate, true
		}
	}
	return installed{}, false
}

// usable refuses the wrapper of the packages: it runs only as root or as the user rabbitmq, and ignores the
// environment.
func usable(script string) bool {
	about, err := os.Stat(script)
	if err != nil || !about.Mode().IsRegular() || about.Mode()&0o111 == 0 {
		return false
	}
	text, err := os.ReadFile(script)
	return err == nil && !bytes.Contains(text, []byte("/usr/lib/rabbitmq/bin/"))
}
