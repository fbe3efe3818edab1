package layout

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeCodeCompiles: every Go block of the README is a part of an Example, but for its indentation.
func TestReadmeCodeCompiles(t *testing.T) {
	const root = "../.."
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var examples strings.Builder
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(filepath.Base(path), "example_") {
			return err
		}
		text, err := os.ReadFile(path)
		examples.WriteString(unindented(string(text)) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range regexp.MustCompile(`\b[A-Z]+_[A-Z]+\b`).FindAllString(string(readme), -1) {
		if word != "AMQP_URL" {
			t.Errorf("the README still has the placeholder %s", word)
		}
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) == 0 {
		t.Fatal("the README shows no code")
	}
	for _, block := range blocks {
		code := strings.Replace(strings.TrimPrefix(block[1], "package main\n"), "func main() {", "func Example() {", 1)
		if !strings.Contains(examples.String(), strings.TrimSpace(unindented(code))) {
			t.Errorf("no Example has this code of the README:\n%s", block[1])
		}
	}
}

func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

// TestReadmeCommandsExist: CI runs the targets themselves.
func TestReadmeCommandsExist(t *testing.T) {
	for _, document := range []string{"README.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join("../..", document))
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range regexp.MustCompile("`make ([a-z0-9 -]+)`").FindAllStringSubmatch(string(text), -1) {
			for target := range strings.FieldsSeq(command[1]) {
				if output, err := exec.Command("make", "-C", "../..", "-n", target).CombinedOutput(); err != nil {
					t.Errorf("%s has the command `make %s`, which fails: %s", document, target, output)
				}
			}
		}
	}
}
