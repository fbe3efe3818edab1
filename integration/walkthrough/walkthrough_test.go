// Package walkthrough runs the commands of the documents in their order, and compares what they print.
package walkthrough

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/server"
)

const (
	page = "../../docs/dead-letters.md"
	// longest is the deadline of a command.
	longest = 6 * time.Minute
)

// A kind is a backend on which the page is walked through.
type kind struct {
	letters     string                             // the queue or topic of the letters
	environment func(t *testing.T) []string        // where the backend is
	prepare     func(t *testing.T, folder string)  // makes the copy of the repository one for the backend; may be nil
	script      func(folder, script string) string // makes a step of the page one for the backend; may be nil
	status      func(dead string) string           // the last line of status; nil: what the page has
}

var kinds = map[string]kind{
	"rabbitmq": {letters: "orders.dead", environment: func(t *testing.T) []string { return []string{"AMQP_URL=" + virtualHost(t)} }},
	"redis": {
		letters: "retry.dead.billing.orders", prepare: onRedis,
		environment: func(t *testing.T) []string {
			address := redisServer(t)
			return []string{"WMRETRY_URL=redis://" + address, "AMQP_URL=" + address} // the app takes it from there
		},
		script: func(folder, script string) string {
			script = strings.ReplaceAll(script, `eval "$(make broker-up)" && `, "")
			script = strings.ReplaceAll(script, "make broker-down\n", "")
			return program.ReplaceAllString(script, "${1}GOWORK="+filepath.Join(folder, ".broker", "go.work")+" go $2")
		},
		status: func(dead string) string {
			if dead == "0" {
				return "billing.orders 0 0 - 0 - 0 -"
			}
			return "billing.orders 0 0 - 0 - " + dead + " TIME"
		},
	},
}

// program finds where a step builds or tests the app.
var program = regexp.MustCompile(`(?m)(^|&& )go (build|test)`)

// onRedis connects the app to Redis: that is another call of Connect.
func onRedis(t *testing.T, folder string) {
	t.Helper()
	app := filepath.Join(folder, "example/outage/app.go")
	text, err := os.ReadFile(app)
	require.NoError(t, err)
	for old, now := range map[string]string{
		`"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"`: `"github.com/redis/go-redis/v9"`,
		`"github.com/tieredretry/watermill-retry/config"`:       `"github.com/tieredretry/watermill-retry/backends/redisretry"`,
		"config.Connect(config.Config{\n\t\tAMQP: amqp.NewDurableQueueConfig(opts.uri), ": "redisretry.Connect(redisretry.Config{\n\t\t" +
			"Client: redis.NewClient(&redis.Options{Addr: opts.uri}), Group: \"billing\", ",
	} {
		require.Contains(t, string(text), old)
		text = bytes.ReplaceAll(text, []byte(old), []byte(now))
	}
	require.NoError(t, os.WriteFile(app, text, 0o600))
	// the module of the example has no client of Redis
	require.NoError(t, os.WriteFile(filepath.Join(folder, ".broker", "go.work"),
		[]byte("go 1.25.0\n\nuse (\n\t..\n\t../backends/redisretry\n)\n"), 0o600))
}

func redisServer(t *testing.T) (address string) {
	t.Helper()
	path, err := server.Program(t.Context(), "redis-server", "redis-server", []string{"redis-server"})
	require.NoError(t, err)
	redis, err := server.Start(t.Context(), server.Plan{
		Name: "redis-server", Ending: syscall.SIGKILL,
		Command: func(folder string, port int) (string, []string, error) {
			number := strconv.Itoa(port)
			return net.JoinHostPort("127.0.0.1", number), []string{path, "--port", number, "--bind", "127.0.0.1", "--dir", folder}, nil
		},
		Answers: func(ctx context.Context, address string) error {
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			return connection.Close()
		},
	})
	require.NoError(t, err)
	t.Cleanup(redis.Stop)
	return redis.URL
}

// TestWalkthrough runs "A first outage" of docs/dead-letters.md, every command of it, in a copy of the repository, on each
// backend. The broker that `make broker-up` finds is a virtual host of the one of the tests.
func TestWalkthrough(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	first := section(string(text), "## A first outage")
	require.Greater(t, len(stepsOf(first)), 8)
	checkAlert(t, first)
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k.walk(t, stepsOf(first))
		})
	}
}

func (k kind) walk(t *testing.T, steps []step) {
	t.Helper()
	s := newShell(t, k.environment(t)...)
	copyRepository(t, s.folder, k.prepare)
	example := filepath.Join(s.folder, "example/outage")
	files, err := filepath.Glob(filepath.Join(example, "*"))
	require.NoError(t, err)
	before, err := os.ReadFile(filepath.Join(example, "app.go"))
	require.NoError(t, err)
	for _, step := range steps {
		step.output = strings.ReplaceAll(step.output, "orders.dead", k.letters)
		if k.script != nil {
			step.command = k.script(s.folder, step.command)
		}
		printed := s.run(t, step)
		if strings.HasPrefix(step.command, "wmretry status") { // the figures of the management API come later
			last := func(printed string) string {
				if k.status == nil {
					return printed
				}
				return printed[strings.LastIndex(strings.TrimSpace(printed), "\n")+1:]
			}
			if k.status != nil {
				dead := regexp.MustCompile(`(?m)^  dead letters +(\d+) `).FindStringSubmatch(step.output)
				require.NotNil(t, dead)
				step.output = k.status(dead[1])
			}
			printed = last(printed)
			for deadline := time.Now().Add(longest); shape(printed) != shape(step.output) && time.Now().Before(deadline); {
				time.Sleep(time.Second)
				printed = last(s.run(t, step))
			}
		}
		if step.output == "" { // the progress of make is not on the page
			continue
		}
		if want, got := shape(step.output), shape(printed); !assert.Equal(t, want, got, "the output of %s", step.command) {
			t.Logf("%s printed:\n%s", step.command, printed)
		}
	}
	for i, stop := range s.jobs {
		assert.Nil(t, stop, "the program %%%d still runs", i+1)
	}
	after, err := os.ReadFile(filepath.Join(example, "app.go"))
	require.NoError(t, err)
	assert.Equal(t, string(before), string(after))
	left, err := filepath.Glob(filepath.Join(example, "*"))
	require.NoError(t, err)
	assert.Equal(t, files, left, "files of the example")
}

// checkAlert compares the alert of the page with its rule and its runbook. integration/observe/board makes the alerts fire.
func checkAlert(t *testing.T, first string) {
	t.Helper()
	rules, err := os.ReadFile("../../observability/alerts/watermill-retry.yml")
	require.NoError(t, err)
	_, rule, found := strings.Cut(string(rules), "- alert: DeadLettersGrowing\n")
	require.True(t, found)
	_, summary, _ := strings.Cut(rule, "summary: ")
	summary, _, _ = strings.Cut(summary, "\n")
	assert.Contains(t, first, "`"+strings.ReplaceAll(summary, "{{ $labels.queue }}", "orders.dead")+"`")
	runbooks, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, runbook, _ := strings.Cut(string(runbooks), "\n### DeadLettersGrowing\n")
	command := inline.FindStringSubmatch(runbook)
	require.NotNil(t, command)
	assert.Contains(t, first, "\n"+command[1]+"\n", "the first command of the runbook")
}

// doctor runs the commands of "Doctor" of docs/operations.md.
func doctor(t *testing.T, wmretry string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	steps := stepsOf(section(string(text), "## Doctor"))
	require.Len(t, steps, 1)
	s := newShell(t, "AMQP_URL="+virtualHost(t))
	require.NoError(t, os.Symlink(wmretry, filepath.Join(s.folder, ".broker", "wmretry")))
	printed := s.run(t, steps[0])
	assert.Equal(t, shape(steps[0].output), shape(printed), printed)
}

// step is a command of the page and what it prints.
type step struct{ command, output string }

// section returns the text between a heading and the next one of the same level.
func section(text, heading string) string {
	_, text, _ = strings.Cut(text, "\n"+heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

var block = regexp.MustCompile("(?sm)^```(sh|text)\n(.*?)^```$")

// stepsOf returns the sh blocks of a text, each with the text block that follows.
func stepsOf(text string) (steps []step) {
	for _, match := range block.FindAllStringSubmatch(text, -1) {
		if match[1] == "sh" {
			steps = append(steps, step{command: match[2]})
		} else {
			steps[len(steps)-1].output += match[2]
		}
	}
	return steps
}

// variable is what differs between two runs, and what takes its place.
var variable = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h))+\b`), "DURATION"},
	{regexp.MustCompile(`\b\d+(\.\d+)?/s`), "RATE"},
	{regexp.MustCompile(`127(\.\d+){3}:\d+`), "ADDRESS"},
	{regexp.MustCompile(` at \w+://ADDRESS\S*`), " at BACKEND"},
	{regexp.MustCompile(`order-\d+`), "ORDER"},
	{regexp.MustCompile(`wmretry \S+, library \S+, go1\S+\nRabbitMQ .*\nvirtual host [^,]+`), "VERSIONS"},
	{regexp.MustCompile(`(?m)^(ok|FAIL)[ \t]+\S+`), "$1 PACKAGE"},
	// Columns are as wide as what they have.
	{regexp.MustCompile(`(?m)^[─-]+$`), "LINE"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`(?m) +$`), ""},
}

func shape(text string) string {
	for _, v := range variable {
		text = v.pattern.ReplaceAllString(text, v.replacement)
	}
	return strings.TrimSpace(text)
}

// shell runs commands as the reader's shell does: in one folder, with the built programs, on a virtual host of its own.
type shell struct {
	folder, provider string
	environment      []string
	jobs             []func() // they end the programs in the background; nil: ended
}

func newShell(t *testing.T, environment ...string) *shell {
	t.Helper()
	for _, tool := range []string{"bash", "git", "make", "sed"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err, "install %s: a reader of the page needs it too", tool)
	}
	host := "127.0.0.1"
	if runtime.GOOS == "linux" { // each address of 127.0.0.0/8 is this machine, and no program listens at this one
		host = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	}
	s := &shell{folder: t.TempDir(), provider: net.JoinHostPort(host, strconv.Itoa(28_000+rand.IntN(4_000)))}
	programs := filepath.Join(s.folder, ".broker")
	require.NoError(t, os.Mkdir(programs, 0o755))
	require.NoError(t, os.WriteFile(s.cwd(), []byte(s.folder), 0o600))
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); name != "PATH" && name != "AMQP_URL" && name != "WMRETRY_URL" && !strings.HasPrefix(name, "MAKE") {
			s.environment = append(s.environment, variable)
		}
	}
	s.environment = append(append(s.environment, "PATH="+programs+string(os.PathListSeparator)+os.Getenv("PATH")), environment...)
	return s
}

// copyRepository makes a clone of the repository as it is: the page changes a file, and takes it back with git.
func copyRepository(t *testing.T, folder string, prepare func(t *testing.T, folder string)) {
	t.Helper()
	root := os.DirFS("../..")
	require.NoError(t, fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == ".git" || path == ".broker":
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(folder, path), 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(folder, path), content, 0o600)
	}))
	if prepare != nil {
		prepare(t, folder)
	}
	for _, arguments := range [][]string{
		{"init", "-q"}, {"add", "example/outage"},
		{"-c", "user.name=test", "-c", "user.email=test@example.test", "-c", "commit.gpgsign=false", "commit", "-qm", "test"},
	} {
		output, err := exec.Command("git", append([]string{"-C", folder}, arguments...)...).CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}

func virtualHost(t *testing.T) (uri string) {
	t.Helper()
	uri, remove, err := broker.Host(broker.Management(t), broker.URL(t), "walkthrough")
	require.NoError(t, err)
	t.Cleanup(func() { _ = remove() })
	return uri
}

var (
	outage = regexp.MustCompile(`(?m)^outage\b`)
	kill   = regexp.MustCompile(`(?m)^kill((?: %\d)+)$`)
)

// run runs a step and returns what it prints: its output, those lines of stderr that are messages and not progress, and
// then the exit code, where the step prints it. A command in the background goes on until the test ends.
func (s *shell) run(t *testing.T, step step) string {
	t.Helper()
	script := strings.TrimSpace(outage.ReplaceAllLiteralString(step.command, "outage -address "+s.provider))
	if background, found := strings.CutSuffix(script, "&"); found {
		return s.start(t, background, len(step.output))
	}
	if jobs := kill.FindStringSubmatch(script); jobs != nil {
		for job := range strings.FieldsSeq(jobs[1]) {
			n, err := strconv.Atoi(job[1:])
			require.NoError(t, err)
			s.jobs[n-1]()
			s.jobs[n-1] = nil
		}
		script = kill.ReplaceAllLiteralString(script, "")
	}
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	var output, messages bytes.Buffer
	command := s.command(ctx, script)
	command.Stdout, command.Stderr = &output, &messages
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err, script)
	}
	require.NoError(t, ctx.Err(), "%s has not ended: %s%s", script, &output, &messages)
	if step.output == "" {
		require.NoError(t, err, "%s: %s%s", script, &output, &messages)
	}
	printed, code, found := strings.Cut(output.String(), "exit code ")
	for line := range strings.Lines(messages.String()) {
		if strings.HasPrefix(line, "wmretry:") || strings.HasPrefix(line, "outage:") {
			printed += line
		}
	}
	if found {
		printed += "exit code " + code
	}
	return printed
}

// start starts a command and returns when it has printed its first line.
func (s *shell) start(t *testing.T, script string, least int) string {
	t.Helper()
	require.Positive(t, least, "the page must have what %s prints: the test waits for it", script)
	ctx, cancel := context.WithCancel(context.Background())
	command := s.command(ctx, "exec "+script)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = longest
	var output firstLine
	output.written = make(chan struct{})
	command.Stdout = &output
	command.Stderr = io.Discard
	require.NoError(t, command.Start())
	stop := sync.OnceFunc(func() {
		cancel()
		_ = command.Wait()
	})
	s.jobs = append(s.jobs, stop)
	t.Cleanup(stop)
	return broker.Receive(t, output.line(), script)
}

func (s *shell) command(ctx context.Context, script string) *exec.Cmd {
	command := exec.CommandContext(ctx, "bash", "-c", "cd \"$(cat "+s.cwd()+")\"\ntrap 'pwd >"+s.cwd()+"' EXIT\n"+script)
	command.Dir, command.Env = s.folder, s.environment
	return command
}

// cwd is the file with the folder in which the next command runs.
func (s *shell) cwd() string { return filepath.Join(s.folder, ".broker", "cwd") }

// firstLine is a writer that keeps what is written until its first line ends.
type firstLine struct {
	mu      sync.Mutex
	text    []byte
	written chan struct{}
}

func (f *firstLine) Write(text []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !bytes.Contains(f.text, []byte("\n")) {
		if f.text = append(f.text, text...); bytes.Contains(f.text, []byte("\n")) {
			close(f.written)
		}
	}
	return len(text), nil
}

// line returns a channel that gets the text when its first line is complete.
func (f *firstLine) line() <-chan string {
	line := make(chan string, 1)
	go func() {
		<-f.written
		f.mu.Lock()
		defer f.mu.Unlock()
		line <- string(f.text)
	}()
	return line
}

// TestDocumentedCommands: every command of wmretry in the documents exists, with its flags. --help parses the flags and
// runs nothing. The page of doctor has what it prints.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	wmretry := filepath.Join(t.TempDir(), "wmretry")
	require.NoError(t, child.Build("../../cmd/wmretry", wmretry))
	doctor(t, wmretry)
	fault := func(line string) string {
		output, err := exec.Command("bash", "-c", wmretry+strings.TrimPrefix(line, "wmretry")+" --help").CombinedOutput()
		if err != nil {
			return string(output)
		}
		_, usage, _ := strings.Cut(string(output), "Usage:\n  ")
		usage, _, _ = strings.Cut(usage, "\n")
		if path := name.FindString(usage); !strings.HasPrefix(line+" ", path) || strings.Contains(string(output), "\nAvailable Commands:") {
			return "the nearest command is " + usage
		}
		return ""
	}
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	commands := map[string]bool{}
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, line := range commandsIn(string(text)) {
			if !commands[line] {
				commands[line] = true
				assert.Empty(t, fault(line), "%s has the command %s", page, line)
			}
		}
	}
	assert.Greater(t, len(commands), 20)
	for _, wrong := range []string{"wmretry dead lists orders", "wmretry dead list --wrong orders", "wmretry dead"} {
		assert.NotEmpty(t, fault(wrong), wrong)
	}
}

var (
	inline   = regexp.MustCompile("`(wmretry [^`]+)`")
	ownLine  = regexp.MustCompile(`(?m)^(?:\.broker/)?wmretry +(.+)$`)
	followed = regexp.MustCompile(` *(;|&| # ).*$`)
	// name finds the words of a command in its usage: those before the arguments.
	name = regexp.MustCompile(`^(?:[a-z]+ )+`)
)

// commandsIn returns the commands of wmretry in a text.
func commandsIn(text string) (lines []string) {
	for _, match := range inline.FindAllStringSubmatch(text, -1) {
		lines = append(lines, match[1])
	}
	for _, match := range ownLine.FindAllStringSubmatch(text, -1) {
		lines = append(lines, "wmretry "+followed.ReplaceAllString(match[1], ""))
	}
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "wmretry --") })
}

// TestShape makes sure that a wrong number or text is found, and what differs between runs is not.
func TestShape(t *testing.T) {
	t.Parallel()
	assert.Equal(t, shape("  36  sent back (2/s) order-3\nRedrive (14.71s)  \n"), shape("36 sent back (17/s) order-1\nRedrive (20ms)\n"))
	for _, different := range []string{"35 sent back", "36 sent back, and", "36 removed"} {
		assert.NotEqual(t, shape("36 sent back"), shape(different))
	}
	steps := stepsOf(section("\n## A\n```sh\na\n```\n\n```text\n1\n```\n```sh\nb\n```\n## B\n```sh\nc\n```\n", "## A"))
	assert.Equal(t, []step{{"a\n", "1\n"}, {"b\n", ""}}, steps)
}
