//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// processes returns the ids of the processes whose command line contains the text. A zombie has no command line.
func processes(text string) []int {
	var found []int
	for pid, line := range commandLines() {
		if pid != os.Getpid() && strings.Contains(line, text) {
			found = append(found, pid)
		}
	}
	return found
}

// commandLines reads /proc, or runs ps where there is no /proc.
func commandLines() map[int]string {
	lines := map[int]string{}
	if files, _ := filepath.Glob("/proc/[0-9]*/cmdline"); len(files) > 0 {
		for _, file := range files {
			line, err := os.ReadFile(file)
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err == nil {
				lines[pid] = strings.ReplaceAll(string(line), "\x00", " ")
			}
		}
		return lines
	}
	output, _ := exec.Command("ps", "-axww", "-o", "pid=,command=").Output()
	for line := range strings.Lines(string(output)) {
		pid, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number, err := strconv.Atoi(pid); err == nil {
			lines[number] = command
		}
	}
	return lines
}
