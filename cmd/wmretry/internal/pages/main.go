// Command pages writes the manual pages and the completions of wmretry into a folder.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra/doc"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "pages: it needs one argument, a folder")
		os.Exit(64)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	manual, completions := filepath.Join(folder, "man", "man1"), filepath.Join(folder, "completions")
	for _, dir := range []string{manual, completions} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	root := cli.Commands()
	for name, generate := range map[string]func(string) error{
		"wmretry.bash": func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"_wmretry":     root.GenZshCompletionFile,
		"wmretry.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
		"wmretry.ps1":  root.GenPowerShellCompletionFileWithDesc,
	} {
		if err := generate(filepath.Join(completions, name)); err != nil {
			return err
		}
	}
	root.DisableAutoGenTag = true // no date: a release can be made again
	return doc.GenManTree(root, &doc.GenManHeader{Title: "WMRETRY", Section: "1", Source: "watermill-retry"}, manual)
}
