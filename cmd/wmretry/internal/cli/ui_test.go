package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
)

// TestUIRefusesOtherMachines: the page has no login.
func TestUIRefusesOtherMachines(t *testing.T) {
	for listen, want := range map[string]string{
		"0.0.0.0:0": "--allow-remote", ":8080": "--allow-remote", "10.0.0.1:8080": "--allow-remote", "example.com:8080": "--allow-remote", "8080": "an address and a port",
	} {
		var stderr bytes.Buffer
		e := &env{stdout: &bytes.Buffer{}, stderr: &stderr}
		assert.Equal(t, codeUsage, run(context.Background(), e, []string{"ui", "--listen", listen}), listen)
		assert.Contains(t, stderr.String(), want, listen)
	}
}

// TestEachCommandHasAPage on each backend, and each flag a text that no other one has: help.txt is a template, and the
// commands are in several files.
func TestEachCommandHasAPage(t *testing.T) {
	tried := 0
	for _, address := range strings.Fields(backend.Examples()) {
		kind := backend.KindOf(address)
		if kind == nil { // a word between the addresses
			continue
		}
		tried++
		t.Run(kind.Name, func(t *testing.T) {
			e := &env{kind: kind}
			root := newRoot(e)
			ofCobra, _, err := root.Find([]string{"completion"})
			require.NoError(t, err)
			root.RemoveCommand(ofCobra)
			pages := maps.Clone(e.help)
			for _, only := range root.Commands() {
				if only.DisableFlagParsing { // of RabbitMQ
					root.RemoveCommand(only)
					maps.DeleteFunc(pages, func(path string, _ helpPage) bool {
						return strings.HasPrefix(path+" ", "wmretry "+only.Name()+" ")
					})
				}
			}
			var paths []string
			described := map[string]bool{} // whether a flag has each text of help.txt
			for path, page := range pages {
				for name := range page.flags {
					described[path+" --"+name] = false
				}
			}
			describes := func(f *pflag.Flag, paths ...string) {
				for _, path := range paths {
					if _, has := described[path+" --"+f.Name]; has {
						described[path+" --"+f.Name] = true
						return
					}
				}
				assert.Fail(t, "a flag without a text", "--%s of %s", f.Name, paths[0])
			}
			var look func(c *cobra.Command)
			look = func(c *cobra.Command) {
				paths = append(paths, c.CommandPath())
				c.LocalFlags().VisitAll(func(f *pflag.Flag) { describes(f, c.CommandPath(), "wmretry") })
				for _, below := range c.Commands() {
					look(below)
				}
			}
			look(root)
			for flag, has := range described {
				assert.True(t, has, "a text without a flag: %s", flag)
			}
			assert.ElementsMatch(t, paths, slices.Collect(maps.Keys(pages)))
			for path, page := range pages {
				assert.NotEmpty(t, page.short, path)
			}
		})
	}
	assert.Equal(t, 5, tried)
}

func TestUILoopback(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:8080": true, "127.8.8.8:0": true, "[::1]:8080": true, "localhost:8080": true, "[::]:8080": false, "localhost.example.com:80": false,
	} {
		got, err := isLoopback(listen)
		require.NoError(t, err)
		assert.Equal(t, want, got, listen)
	}
}

// TestErrorsAreEscaped: an error can have the text of a broker, and of an argument.
func TestErrorsAreEscaped(t *testing.T) {
	for _, args := range [][]string{{"\x1b[2J"}, {"ui", "--\x1b[2J"}, {"ui", "--listen", "\x1b[2J"}, {"topology", "apply", "--file", "\x1b[2J"}} {
		var stderr bytes.Buffer
		e := &env{stdout: &bytes.Buffer{}, stderr: &stderr}
		assert.NotZero(t, run(context.Background(), e, args))
		assert.Contains(t, stderr.String(), `\x1b[2J`, args)
		assert.NotContains(t, stderr.String(), "\x1b", args)
	}
	var stderr bytes.Buffer
	e := &env{stderr: &stderr, flags: flags{verbose: true}, passwords: []string{"correct-horse"}}
	e.logger().Error("lost", errors.New("\u009b2J\u202e"), watermill.LogFields{"queue": "\x1b[2J", "uri": "amqp://shop:correct-horse@host/"})
	assert.NotRegexp(t, "[\x1b\u009b\u202e]|correct-horse", stderr.String())
	assert.Contains(t, stderr.String(), "lost")
}

// TestExportsAreEscaped: on a terminal JSON has nothing that changes it, and has the same values.
func TestExportsAreEscaped(t *testing.T) {
	var stdout bytes.Buffer
	line := `{"text":"` + "\u009b2J\u202e\x7fé" + `"}` + "\n"
	n, err := jsonLines{&stdout}.Write([]byte(line))
	require.NoError(t, err)
	assert.Equal(t, len(line), n)
	assert.Equal(t, `{"text":"\u009b2J\u202e\u007fé"}`+"\n", stdout.String())
	assert.JSONEq(t, line, stdout.String())
	stdout.Reset()
	e := &env{stdout: &stdout, stderr: &bytes.Buffer{}}
	require.Equal(t, codeDone, run(context.Background(), e, []string{"topology", "export", "--queue", "a\u009b\u202e", "--schedule", "1s"}))
	assert.NotRegexp(t, "[\u009b\u202e]", stdout.String())
	assert.Contains(t, stdout.String(), `"a\u009b\u202e.dead"`)
}

// TestCompletable: a queue of another user must not reach the terminal, or run anything, when TAB lists the names.
func TestCompletable(t *testing.T) {
	for name, want := range map[string]bool{
		"orders": true, "my orders": true, "ørders:1": true, "$(id)": true, // bash gets names that are quoted
		"a\x1b[2J": false, "a\nb": false, "a\tb": false, "a\u202e": false, "_activeHelp_ a": false,
	} {
		assert.Equal(t, want, completable(name), "%q", name)
	}
}

// TestListCommand: a hint names the queue of the command, and works as it stands.
func TestListCommand(t *testing.T) {
	for _, row := range []struct {
		asIs                bool
		given, prefix, want string
	}{
		{false, "orders", "", "wmretry dead list orders"},
		{false, "orders.dead", "", "wmretry dead list orders"},
		{false, "orders.dead.dead", "", "wmretry dead list orders.dead.dead"},
		{false, "my orders", "", "wmretry dead list 'my orders'"},
		{false, "orders", "shop", "wmretry dead list orders --prefix shop"},
		{false, "shop.orphans", "shop", "wmretry dead list shop.orphans --prefix shop"},
		{true, "orders.poison", "", "wmretry dead list --as-is orders.poison"},
		{true, "orders.dead", "", "wmretry dead list orders"},
	} {
		e := &env{kind: backend.RabbitMQ, flags: flags{prefix: row.prefix, asIs: row.asIs}}
		assert.Equal(t, row.want, e.listCommand(e.onRabbitMQ(row.given)))
	}
	for address, want := range map[string]string{
		"amqp://": "`wmretry status --all --prefix shop` lists", "redis://": "`wmretry status --prefix shop` lists",
	} {
		e := &env{kind: backend.KindOf(address), flags: flags{prefix: "shop"}}
		assert.ErrorContains(t, e.explain(letters.ErrNoQueue), want)
	}
	e := &env{kind: backend.RabbitMQ}
	assert.ErrorContains(t, e.noLetter("orders.dead", "a"), "the id a; `wmretry dead list orders` prints the ids")
	err := e.nothing("orders.dead", letters.Filter{Handler: "x"})
	assert.ErrorContains(t, err, "`wmretry dead list orders` shows all of them")
}

// TestImportCommand: the report of a discard names the file to import.
func TestImportCommand(t *testing.T) {
	var out bytes.Buffer
	e := &env{stdout: &out, flags: flags{prefix: "shop"}}
	r := e.report("discard", "orders.dead", "", letters.Redrive{})
	r.Export = "old letters.jsonl"
	assert.NoError(t, r.end(t.Context(), letters.Summary{Done: 1, Total: 1}).finish(nil))
	assert.Contains(t, out.String(), "`wmretry dead import 'old letters.jsonl' --prefix shop` puts them back")
}

// TestTheReportOfLettersThatDiedAgain: it counts all letters, and has the causes of those that a canary has sent.
func TestTheReportOfLettersThatDiedAgain(t *testing.T) {
	var out bytes.Buffer
	e := &env{stdout: &out, kind: backend.RabbitMQ}
	r := e.report("redrive", "orders.dead", "", letters.Redrive{})
	summary := letters.Summary{Total: 40, Done: 3, Other: 4, Unseen: 33, Redead: 3}
	r.Causes = []letters.Group{{Count: 3, Cause: letters.Cause{DeadReason: "exhausted", Reason: "connection refused"}}}
	err := r.end(t.Context(), summary).finish(fmt.Errorf("%w: repair the cause first", letters.ErrRedead))
	assert.ErrorIs(t, err, letters.ErrRedead)
	for _, line := range []string{
		`Redrive of orders\.dead, stopped early \(0s\)`, ` +3  sent back, confirmed and removed`,
		` +4  not selected by the filters: they stay`, ` +33  not looked at, because the command ended early: they stay`,
		` +40  letters were in the queue at the start`, `3 of the letters sent have died again until now\.`,
		`DIED AGAIN +CAUSE +DEAD REASON .*`, ` +3  [0-9a-f]{8}  exhausted .*connection refused.*`,
	} {
		assert.Regexp(t, "(?m)^"+line+"$", out.String())
	}
}

// stopped is a store whose redrive ends because letters died again, and the user interrupts the search for causes.
type stopped struct {
	letters.Store
	took, search time.Duration
	interrupt    func()
}

func (s stopped) Redrive(context.Context, string, letters.Redrive) (letters.Summary, error) {
	time.Sleep(s.took)
	return letters.Summary{Total: 3, Done: 3, Redead: 3}, letters.ErrRedead
}

func (s stopped) Browse(context.Context, string, letters.Filter) iter.Seq2[*letters.Letter, error] {
	return func(func(*letters.Letter, error) bool) {
		time.Sleep(s.search)
		s.interrupt()
	}
}

// TestTheSearchForCausesIsNoPartOfTheRedrive: neither its duration nor its interruption is the redrive's.
func TestTheSearchForCausesIsNoPartOfTheRedrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out bytes.Buffer
		e := &env{stdout: &out, stderr: &bytes.Buffer{}, kind: backend.RabbitMQ, json: true}
		store := stopped{took: 2 * time.Second, search: 20 * time.Second, interrupt: cancel}
		err := e.redrive(ctx, place{&backend.Store{Store: store}, "orders.dead"}, letters.Redrive{})
		require.ErrorIs(t, err, letters.ErrRedead)
		require.Error(t, ctx.Err())
		var have report
		require.NoError(t, json.Unmarshal(out.Bytes(), &have))
		assert.InDelta(t, 2.0, have.Seconds, 0)
		assert.False(t, have.Interrupted)
	})
}

// TestNoProgressAfterTheEnd: a late call would leave its line beside the report.
func TestNoProgressAfterTheEnd(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var stderr bytes.Buffer
			m := (&env{stderr: &stderr, errTerminal: terminal}).meter("redrive of orders", "sent", letters.Redrive{})
			shown := func(phase letters.Phase) string {
				stderr.Reset()
				m.show(letters.Progress{Phase: phase})
				return stderr.String()
			}
			assert.Contains(t, shown(letters.Waiting), "0 sent; waits, and")
			assert.Equal(t, terminal, shown(letters.Waiting) != "", "a line says it already")
			time.Sleep(lineEvery)
			assert.Equal(t, only(terminal, "\r\x1b[K"), shown(letters.Ended))
			for _, late := range []letters.Phase{letters.Looking, letters.Waiting, letters.Watching} {
				assert.Empty(t, shown(late), late)
			}
		})
	}
}

// TestTheProgressCountsTheSelection, as far as it is known: what is not looked at yet may be selected.
func TestTheProgressCountsTheSelection(t *testing.T) {
	for want, c := range map[string]struct {
		some    bool
		limit   int
		summary letters.Summary
	}{
		"196 of 620 sent":         {false, 0, letters.Summary{Total: 620, Done: 196, Unseen: 424}},
		"196 of at most 595 sent": {true, 0, letters.Summary{Total: 620, Done: 196, Other: 25, Unseen: 399}},
		"544 of 544 sent":         {true, 0, letters.Summary{Total: 620, Done: 544, Other: 76}},
		"3 of at most 10 sent":    {false, 10, letters.Summary{Total: 620, Done: 3, Unseen: 617}},
		"10 of at most 10 sent":   {true, 10, letters.Summary{Total: 620, Done: 10, Other: 4, Unseen: 606}},
	} {
		m := meter{verb: "sent", some: c.some, limit: c.limit}
		assert.Equal(t, want+" as a canary", m.message(letters.Progress{Summary: c.summary, Phase: letters.Canary}))
	}
	m, lost := meter{verb: "sent"}, letters.Progress{Phase: letters.Waiting, Err: errors.New("EOF")}
	assert.Equal(t, "0 sent; waits, and goes on when the broker is back: EOF", m.message(lost))
}

// TestWhatATierForwardsIsNotOverdue: a tier without a fault can have messages that are on their way.
func TestWhatATierForwardsIsNotOverdue(t *testing.T) {
	for expired, want := range map[int]string{2: "2 due", 32: "32 due", 33: "33 overdue"} {
		e := &env{flags: flags{prefix: "retry"}}
		status := letters.Status{Queues: []letters.WorkQueue{{
			Name: "orders", Tiers: []letters.Tier{{Delay: 600e6, Overdue: expired}},
		}}}
		assert.Contains(t, e.statusText(status, false), " "+want)
	}
}

// TestKeyWord: what is shown of a key is the key for a shell, and for the command.
func TestKeyWord(t *testing.T) {
	for key, want := range map[string]struct{ word, arguments string }{
		"customer-7":   {"customer-7", "customer-7."},
		"":             {"''", "."},
		"a b":          {"'a b'", "a b."},
		"--help":       {"-- --help", "--.--help."},
		"a\nb":         {`$'a\nb'`, "a\nb."},
		"it's \x1b[2J": {`$'it\'s \x1b[2J'`, "it's \x1b[2J."},
		"\u202e\\":     {`$'\u202e\\'`, "\u202e\\."},
	} {
		assert.Equal(t, want.word, keyWord(key))
		output, err := exec.Command("bash", "-c", "export LC_ALL=C.UTF-8; printf '%s.' "+want.word).Output()
		require.NoError(t, err)
		assert.Equal(t, want.arguments, string(output))
	}
}

// TestIDs: an id has every character. Of a flag with one value the last one is read.
func TestIDs(t *testing.T) {
	var filter letters.Filter
	c := &cobra.Command{}
	flags := filterFlags(&filter, nil)
	flags.addTo(c.Flags())
	given := []string{`a,b`, `a"b`, `"a,b"`, `it's`}
	for _, id := range given {
		require.NoError(t, c.ParseFlags([]string{"--id", id, "--key", id}))
	}
	require.NoError(t, flags.read())
	assert.True(t, selects(filter))
	assert.Equal(t, given, filter.IDs)
	assert.Equal(t, map[string]string{"retry_key": "it's"}, filter.Metadata)
}

// TestNoFlagIsEmpty: a filter that is empty, such as a variable that is not set, does not select all letters, and an
// empty file is not none.
func TestNoFlagIsEmpty(t *testing.T) {
	arguments, tried := map[string][]string{"show": {"orders", "a"}}, 0
	for _, c := range newRoot(&env{kind: backend.RabbitMQ}).Commands() {
		if c.Name() != "dead" {
			continue
		}
		for _, c := range c.Commands() {
			c.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Value.Type() != "string" && f.Value.Type() != several || f.Name == "help" {
					return
				}
				tried++
				var stderr bytes.Buffer
				e := &env{stdout: &bytes.Buffer{}, stderr: &stderr}
				args := append([]string{"dead", c.Name(), "--" + f.Name, ""}, arguments[c.Name()]...)
				if len(arguments[c.Name()]) == 0 {
					args = append(args, "orders")
				}
				assert.Equal(t, codeUsage, run(context.Background(), e, args), args)
				assert.Contains(t, stderr.String(), "--"+f.Name+" is empty", args)
			})
		}
	}
	assert.Greater(t, tried, 40)
}

// TestTheCommandThatIsMeant: what is suggested is the whole command, also where the word is followed by flags of it.
func TestTheCommandThatIsMeant(t *testing.T) {
	for line, want := range map[string]string{
		"redrive orders":                                 "did you mean `wmretry dead redrive orders`?",
		"redrive orders --canary 10":                     "did you mean `wmretry dead redrive orders --canary 10`?",
		"--prefix a;b redrive orders --dry-run":          "did you mean `wmretry --prefix 'a;b' dead redrive orders --dry-run`?",
		"--url nats://S3CRET@h:4222 redrive orders":      "did you mean `wmretry --url nats://... dead redrive orders`?",
		"--url=postgres://h/x?password=S3CRET redrive a": "did you mean `wmretry --url=postgres://... dead redrive a`?",
		"--url redis://h:6379 redrive a":                 "did you mean `wmretry --url redis://h:6379 dead redrive a`?",
		"dead redive orders --canary 10":                 "did you mean `wmretry dead redrive orders --canary 10`?",
		"daed list orders":                               "did you mean `wmretry dead list orders`?",
		"export orders":                                  "did you mean `wmretry dead export orders` or `wmretry topology export orders`?",
		"orphans":                                        "did you mean `wmretry dead`?",
		"nonsense --canary 10":                           "wmretry has no command \"nonsense\"\n",
		"--colour redrive":                               "unknown flag: --colour",
		"dead list orders --limit ten":                   `--limit is "ten": it must be a whole number from 0 to 9223372036854775807`,
		"dead redrive orders --canary-wait soon":         `--canary-wait is "soon": it must be a duration, such as 90s, 10m, 36h or 2d`,
		"dead redrive orders --canary-wait xd":           `--canary-wait is "xd": it must be a duration, such as 90s, 10m, 36h or 2d`,
		"dead redrive orders --dry-run=perhaps":          `--dry-run is "perhaps": it must be true or false`,
		"order status orders --wait soon":                `--wait is "soon": it must be a duration`,
		`dead show orders a --redact a"b`:                `--redact is "a\"b": it must be a list with commas between its values`,
		"dead redrive orders --canary-wait 2d":           "--canary-wait is 48h0m0s: it needs --canary",
		"status --url redis://127.0.0.1:1/foo":           `invalid database number: "foo"`,
		"ui --url redis://127.0.0.1:1 --prefix b/d":      `--prefix is "b/d": it must have at most 40 characters`,
		"topology plan --partitions 9999999999999999999": `--partitions is "9999999999999999999": it must be a whole number`,
	} {
		var stderr bytes.Buffer
		e := &env{stdout: &bytes.Buffer{}, stderr: &stderr}
		assert.Equal(t, codeUsage, run(context.Background(), e, strings.Fields(line)), line)
		assert.Contains(t, stderr.String(), want, line)
		assert.NotRegexp(t, "strconv|time:|parse error|S3CRET", stderr.String(), line)
	}
}

// shelf is a store of letters with these ids.
type shelf struct {
	letters.Store
	ids []string
}

func (s shelf) Browse(_ context.Context, _ string, filter letters.Filter) iter.Seq2[*letters.Letter, error] {
	return func(yield func(*letters.Letter, error) bool) {
		for _, id := range s.ids {
			if letter := (&letters.Letter{ID: id}); filter.Match(letter, time.Now()) && !yield(letter, nil) {
				return
			}
		}
	}
}

// TestAbsentIDs: an id of several that no letter has is named, as it was given.
func TestAbsentIDs(t *testing.T) {
	at := place{&backend.Store{Store: shelf{ids: []string{"a", "b", "c\x1b", "a"}}}, "orders.dead"}
	for want, given := range map[string][]string{
		"":                              {"a", "b", `c\x1b`},
		"has the id d\n":                {"a", "d"},
		"has the id d or e\\x1b or d\n": {"d", "a", "e\x1b", "d"},
	} {
		var stderr bytes.Buffer
		require.NoError(t, (&env{stderr: &stderr}).noteAbsent(t.Context(), at, given))
		assert.Equal(t, want != "", strings.Contains(stderr.String(), "wmretry: warning: no letter in orders.dead "+want), stderr.String())
		assert.Equal(t, want == "", stderr.Len() == 0, stderr.String())
	}
	for _, given := range [][]string{{"d"}, {"d", "e"}} { // nothing is selected, which is an error
		var stderr bytes.Buffer
		require.NoError(t, (&env{stderr: &stderr}).noteAbsent(t.Context(), at, given))
		assert.Empty(t, stderr.String())
	}
	looked := &env{stderr: &bytes.Buffer{}}
	looked.flags.anyLimit = true // a look can be one too many
	require.NoError(t, looked.noteAbsent(t.Context(), place{}, []string{"a", "d"}))
}

// TestACutList: where it is read by another program, or grouped, it is not taken for all letters.
func TestACutList(t *testing.T) {
	at := place{&backend.Store{Store: shelf{ids: []string{"a", "b", "c"}}}, "orders.dead"}
	for limit, want := range map[int]string{0: "", 3: "", 2: "the first 2 letters in orders.dead; there are more (--limit)\n"} {
		for _, group := range []bool{false, true} {
			var stdout, stderr bytes.Buffer
			e := &env{stdout: &stdout, stderr: &stderr, kind: backend.RabbitMQ}
			require.NoError(t, e.list(t.Context(), at, letters.Discard{Limit: limit}, group))
			assert.Equal(t, want, stderr.String())
		}
	}
}

// TestInterruption: after Ctrl-C an import tells which lines it has imported.
func TestInterruption(t *testing.T) {
	assert.Equal(t, "interrupted", interruption(context.Canceled))
	part := fmt.Errorf("%w", &redrive.Unfinished{Err: context.Canceled, Done: "imported already: line 1"})
	assert.Equal(t, "interrupted; imported already: line 1", interruption(part))
}

func TestVersions(t *testing.T) {
	released := versions(&debug.BuildInfo{
		Main:     debug.Module{Version: "v0.1.0"},
		Deps:     []*debug.Module{{Path: "example.com/other", Version: "v9.9.9"}, {Path: library, Version: "v0.1.1"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}},
	})
	assert.Contains(t, released, "wmretry v0.1.0\ncommit  abc\nlibrary v0.1.1\ngo      go1.")
	inClone := versions(&debug.BuildInfo{
		Deps:     []*debug.Module{{Path: library, Version: "v0.0.0", Replace: &debug.Module{Path: "../.."}}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	})
	assert.Contains(t, inClone, "wmretry (devel)\ncommit  abc, with changes\nlibrary (devel)\n")
	assert.Contains(t, versions(&debug.BuildInfo{}), "commit  unknown: built outside of a clone, or with -buildvcs=false\n")
}
