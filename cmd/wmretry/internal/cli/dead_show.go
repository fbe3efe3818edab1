package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/letters"
)

func newShowCommand(e *env) *cobra.Command {
	f := &testFlags{}
	flags := variables{"go-test": &f.config.Name, "redact": (*list)(&f.config.Redact),
		"drop-payload": &f.config.DropPayload, "overwrite": &f.overwrite}
	show := func(ctx context.Context, at place, args []string) error {
		if f.given("go-test") {
			return e.goTest(ctx, at, args[1], f)
		}
		return e.show(ctx, at, args[1])
	}
	c := e.command("dead show "+e.of()+" ID", flags, e.on(flags, f.validate, show))
	f.given = c.Flags().Changed
	return c
}

// each calls a function with each letter that has an id, and its number from 1 on, and returns how many there are.
func (e *env) each(
	ctx context.Context, at place, id string, use func(int, *letters.Letter) error,
) (n int, err error) {
	for letter, err := range at.Browse(ctx, at.queue, letters.Filter{IDs: ids(id)}) {
		if err != nil {
			return n, e.explain(err)
		}
		n++
		if err := use(n, letter); err != nil {
			return n, err
		}
	}
	if n == 0 {
		err = e.noLetter(at.queue, id)
	}
	return n, err
}

func (e *env) show(ctx context.Context, at place, id string) error {
	_, err := e.each(ctx, at, id, func(n int, letter *letters.Letter) error {
		return e.output(shown{letter, letter.Cause().ID(), headerTypes(letter.Headers)}, func() string {
			title := "\n" + e.paint(text.Faint, "another letter of the same message") + "\n"
			return only(n > 1, title) + e.text("letter", letter)
		})
	})
	return err
}

func (e *env) noLetter(queue, id string) error {
	return exit(codeNothing, fmt.Errorf("no letter in %s has the id %s; `%s` prints the ids", safe(queue), safe(id),
		e.listCommand(queue)))
}

// shown is a letter as JSON, which has fewer types than AMQP.
type shown struct {
	*letters.Letter
	Cause       string            `json:"cause"` // the ID
	HeaderTypes map[string]string `json:"header_types,omitempty"`
}

func headerTypes(headers map[string]any) map[string]string {
	types := map[string]string{}
	for key, value := range headers {
		types[key], _ = lettertext.Header(value)
	}
	return types
}

// testFlags make a test of a letter.
type testFlags struct {
	config    letters.GoTestConfig
	overwrite bool
	given     func(flag string) bool
}

// validate completes the configuration of the test. Its package is that of the Go files in this folder that are built
// here.
func (f *testFlags) validate() error {
	if f.given("go-test") {
		found, _ := build.ImportDir(".", 0) // with an error it has what the other files state
		f.config.Package = found.Name
		return faults.In("GoTestConfig", f.config.Validate())
	}
	if f.given("redact") || f.given("drop-payload") || f.given("overwrite") {
		return errors.New("--redact, --drop-payload and --overwrite need --go-test: what is shown is not redacted")
	}
	return nil
}

// goTest writes a test of the newest letter with an ID.
func (e *env) goTest(ctx context.Context, at place, id string, f *testFlags) error {
	var newest *letters.Letter
	n, err := e.each(ctx, at, id, func(_ int, letter *letters.Letter) error {
		if newest == nil || !letter.DeadAt().Before(newest.DeadAt()) {
			newest = letter
		}
		return nil
	})
	if err != nil {
		return err
	}
	test, err := newest.GoTest(f.config)
	if err != nil {
		return err
	}
	if err := test.Write(".", f.overwrite); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; --overwrite replaces it", err)
	} else if err != nil {
		return err
	}
	files := slices.Sorted(maps.Keys(test.Files))
	unused := lettertext.Unused(f.config.Redact, test.Redacted)
	if e.json {
		return e.printJSON(map[string]any{
			"command": "show", "queue": at.queue, "test": test.Name, "files": files, "redacted": test.Redacted, "letters": n,
		})
	}
	if n > 1 {
		_, _ = fmt.Fprintf(e.stderr, "wmretry: %d letters have this id: the test has the newest\n", n)
	}
	if len(unused) > 0 {
		_, _ = fmt.Fprintf(e.stderr, "wmretry: warning: the letter has no field, metadata or property %s\n",
			safe(strings.Join(unused, ", ")))
	}
	_, err = fmt.Fprintf(e.stdout, "%s and %s written; put the handler into %s\n", files[0], files[1], test.Name)
	if err == nil && len(f.config.Redact) > 0 {
		_, err = fmt.Fprintf(e.stdout, "redacted: %s\n", safe(cmp.Or(strings.Join(test.Redacted, ", "), "nothing")))
	}
	return err
}
