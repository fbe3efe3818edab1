package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/letters"
)

// testFlags make a test of a letter.
type testFlags struct {
	redactFlags
	name                   string
	dropPayload, overwrite bool
}

func (f *testFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.name, "go-test", "", "write a Go test of this name, and the letter into testdata, in place of "+
		"showing it")
	f.redactFlags.add(c)
	flags.BoolVar(&f.dropPayload, "drop-payload", false, "with --go-test: leave the payload out")
	flags.BoolVar(&f.overwrite, "overwrite", false, "with --go-test: replace files that are there")
}

// redactFlags name the values to replace.
type redactFlags struct {
	names []string
	file  string
}

func (f *redactFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringSliceVar(&f.names, "redact", nil, "in a test: replace the values of these payload fields, by name or "+
		"path, and of this metadata (separated by commas)")
	flags.StringVar(&f.file, "redact-rules", "", "file with further names and paths for --redact, one a line; # begins "+
		"a comment")
}

// rules returns the rules of both flags.
func (f *redactFlags) rules() ([]string, error) {
	rules := slices.Clone(f.names)
	if f.file == "" {
		return rules, nil
	}
	text, err := os.ReadFile(f.file)
	if err != nil {
		return nil, exit(codeUsage, fmt.Errorf("--redact-rules: %w", err))
	}
	before := len(rules)
	for line := range strings.Lines(string(text)) {
		rule, _, _ := strings.Cut(line, "#")
		if rule = strings.TrimSpace(rule); rule != "" {
			rules = append(rules, rule)
		}
	}
	if len(rules) == before {
		return nil, usage("--redact-rules: %s has no rule: write one name or path a line", safe(f.file))
	}
	return rules, nil
}

// config returns the configuration of the test, in the package of this folder.
func (f *testFlags) config() (letters.GoTestConfig, error) {
	rules, err := f.rules()
	if err != nil {
		return letters.GoTestConfig{}, err
	}
	config := letters.GoTestConfig{Name: f.name, Package: packageHere(), Redact: rules, DropPayload: f.dropPayload}
	if err := config.Validate(); err != nil {
		return config, exit(codeUsage, faults.In("GoTestConfig", err))
	}
	return config, nil
}

// packageHere returns the package of the Go files in this folder that are built here, or "".
func packageHere() string {
	found, _ := build.ImportDir(".", 0) // with an error it has what the other files state
	return found.Name
}

// goTest writes a test of the newest letter with an ID.
func (l *letterCommand) goTest(
	ctx context.Context, store *backend.Store, queue, id string, f *testFlags, config letters.GoTestConfig,
) error {
	var newest *letters.Letter
	n := 0
	for letter, err := range store.Browse(ctx, queue, letters.Filter{IDs: ids([]string{id})}) {
		if err != nil {
			return l.explain(err)
		}
		if n++; newest == nil || !letter.DeadAt().Before(newest.DeadAt()) {
			newest = letter
		}
	}
	if n == 0 {
		return l.noLetter(queue, id)
	}
	test, err := newest.GoTest(config)
	if err != nil {
		return err
	}
	if err := test.Write(".", f.overwrite); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; --overwrite replaces it", err)
	} else if err != nil {
		return err
	}
	files := slices.Sorted(maps.Keys(test.Files))
	unused := slices.DeleteFunc(slices.Clone(f.names), func(rule string) bool {
		return slices.Contains(test.Redacted, strings.ToLower(rule))
	})
	if l.json {
		return l.printJSON(map[string]any{
			"command": "show", "queue": queue, "test": test.Name, "files": files, "redacted": test.Redacted, "letters": n,
		})
	}
	if n > 1 {
		_, _ = fmt.Fprintf(l.stderr, "wmretry: %d letters have this id: the test has the newest\n", n)
	}
	if len(unused) > 0 {
		_, _ = fmt.Fprintf(l.stderr, "wmretry: warning: the letter has no field, metadata or property %s\n",
			safe(strings.Join(unused, ", ")))
	}
	_, err = fmt.Fprintf(l.stdout, "%s and %s written; put the handler into %s\n", files[0], files[1], test.Name)
	if err == nil && len(config.Redact) > 0 {
		_, err = fmt.Fprintf(l.stdout, "redacted: %s\n", safe(cmp.Or(strings.Join(test.Redacted, ", "), "nothing")))
	}
	return err
}
