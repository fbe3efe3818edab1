// Package layout tests the layout of the repository: the direction of imports, the documents, and the words of comments.
package layout

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module     = "github.com/tieredretry/watermill-retry"
	watermill  = "github.com/ThreeDotsLabs/watermill"
	amqp091    = "github.com/rabbitmq/amqp091-go"
	amqpPubSub = "github.com/ThreeDotsLabs/watermill-amqp"
	gobreaker  = "github.com/sony/gobreaker" // of Watermill's CircuitBreaker
)

// others are the modules that the rules name by a word. All other words are folders of this repository.
var others = map[string]string{
	"watermill": watermill, "amqp091": amqp091, "amqpPubSub": amqpPubSub, "amqpPubSub/v2": amqpPubSub + "/v2", "gobreaker": gobreaker,
	"testify": "github.com/stretchr/testify",
}

// rule lists what a package, and every package below it, may import besides the standard library.
type rule struct {
	folder, may string
	never       string // applies to indirect imports too
	why         string
	alone       bool // the rule is not for the packages below the folder
}

var rules = []rule{
	{folder: ".", alone: true,
		why: "it is a list of packages, and no second door to them"},
	{folder: "backoff", never: "watermill amqp091",
		why: "it computes delays: an app that needs only a schedule gets no dependency"},
	{folder: "retry", may: "watermill backoff internal/recordkey internal/faults", never: "amqp091 amqpPubSub",
		why: "every user names these types, on every backend: they are data, and do nothing"},
	{folder: "internal/options", may: "watermill backoff retry internal/faults", never: "amqp091 amqpPubSub",
		why: "the connection of every backend reads a handler's options in the same way"},
	{folder: "internal/eventtest", may: "watermill backoff internal/middleware internal/backend retry", never: "amqp091 amqpPubSub",
		why: "the tests of all modules share it"},
	{folder: "internal/operatetest", may: "internal/operate testify", never: "amqp091",
		why: "the tests of the backends share it"},
	{folder: "internal/panics", may: "retry", never: "amqp091",
		why: "all call the app's functions in one way"},
	{folder: "internal/backend", may: "watermill backoff internal/panics retry", never: "amqp091 amqpPubSub",
		why: "it is what the middleware and the backends share: a user does not name it"},
	{folder: "internal/middleware", may: "internal/cause internal/options internal/pauses internal/faults watermill gobreaker backoff internal/msgctx internal/gate internal/recordkey internal/warning internal/backend internal/panics internal/unpublished retry",
		never: "amqp091 amqpPubSub", why: "what to do after a failure does not depend on AMQP, so that an app can change its Pub/Sub"},
	{folder: "middleware", may: "watermill internal/middleware", never: "amqp091 amqpPubSub",
		why: "an app gives it to Watermill's middlewares, on every backend"},
	{folder: "letters", may: "internal/cause internal/faults internal/lettertext watermill internal/letterline internal/recordkey internal/middleware retry",
		never: "amqp091 amqpPubSub", alone: true, why: "the dead letters of all backends share it: code that gets a Store works on each of them"},
	{folder: "internal/letterline", may: "retry", never: "amqp091 amqpPubSub",
		why: "a test of an app reads the file of a letter, on every backend"},
	{folder: "internal/lettertext",
		why: "it is text: the command and the page show a letter's contents in one way"},
	{folder: "internal/relaytopic", may: "backoff",
		why: "it is names: those who forward messages and those who read dead letters agree on them"},
	{folder: "internal/each", why: "it is for lists of any type"},
	{folder: "internal/operate", may: "letters",
		why: "it is what the backends and the command say to each other: neither imports the other"},
	{folder: "letters/relayletters", may: "internal/faults watermill internal/letterline internal/operate internal/recordkey internal/redrive internal/users letters internal/panics internal/relaytopic backoff internal/middleware retry",
		never: "amqp091 amqpPubSub", why: "it is for the other Pub/Subs, and somebody who only retries never meets it"},
	{folder: "internal/redrive", may: "internal/pauses watermill internal/recordkey letters retry", never: "amqp091 amqpPubSub",
		why: "it is the one engine of redrives: a backend gives it the letters"},
	{folder: "rabbitmq/publish", never: "watermill amqp091 retry",
		why: "it has the errors that an app compares, and every layer below it returns them"},
	{folder: "internal/rabbitmq/failure", may: "amqp091 internal/panics internal/unpublished retry rabbitmq/publish", never: "amqpPubSub internal/middleware",
		why: "what a further try can do is known where the error of a publish is made, and no app reads it"},
	{folder: "internal/unpublished", never: "watermill amqp091",
		why: "every backend says what a further try can do"},
	{folder: "internal/rabbitmq/publisher", may: "internal/pauses internal/panics watermill amqp091 internal/unpublished retry rabbitmq/publish internal/rabbitmq/failure internal/rabbitmq/socket internal/rabbitmq/unfit internal/rabbitmq/wire internal/users",
		never: "amqpPubSub config rabbitmq/topology", why: "it sends publishings: what they are, and what is declared for them, is known above it"},
	{folder: "internal/rabbitmq/channel", may: "amqp091 internal/rabbitmq/wire internal/users",
		never: "amqpPubSub config internal/rabbitmq/dispatch", why: "it is one AMQP channel that consumes: it knows neither messages nor loops"},
	{folder: "internal/rabbitmq/dispatch", may: "internal/pauses watermill amqp091 internal/panics internal/msgctx internal/gate internal/rabbitmq/redelivery",
		never: "amqpPubSub config internal/rabbitmq/channel", why: "it hands messages out: where they come from, and how they are settled, is known above it"},
	{folder: "internal/rabbitmq/subscriber", may: "internal/pauses watermill amqp091 internal/panics internal/gate retry internal/rabbitmq/wire internal/rabbitmq/channel internal/rabbitmq/dispatch",
		never: "amqpPubSub config rabbitmq/topology internal/rabbitmq/ordered", why: "it consumes queues: what is declared for them, and the order of keys through retries, is known above it"},
	{folder: "internal/rabbitmq/ordered", may: "watermill amqp091 internal/panics internal/msgctx retry internal/rabbitmq/redelivery internal/rabbitmq/command internal/rabbitmq/wire internal/rabbitmq/channel internal/rabbitmq/dispatch internal/rabbitmq/subscriber",
		never: "amqpPubSub config rabbitmq/topology", why: "it holds a subscriber, which knows nothing of it: what is declared for partitions is known above it"},
	{folder: "internal/rabbitmq/channeltest", may: "amqp091", never: "watermill internal/rabbitmq/channel",
		why: "it plays the broker for the tests of what consumes"},
	{folder: "rabbitmq/topology", may: "amqp091 backoff internal/rabbitmq/queuearg internal/rabbitmq/naming internal/rabbitmq/refusal internal/shell",
		never: "watermill amqpPubSub", why: "it describes objects of the broker as plain data, also for a tool of an operator that has no Watermill"},
	{folder: "internal/rabbitmq/definitions", may: "amqp091 rabbitmq/topology", never: "watermill",
		why: "it joins what several work queues need: the command exports it, and drift is found with it"},
	{folder: "rabbitmq", may: "amqp091 internal/rabbitmq/management rabbitmq/topology",
		never: "amqpPubSub config", alone: true, why: "it is what users set, and does nothing"},
	{folder: "internal/rabbitmq/door", may: "internal/pauses internal/tasks internal/panics watermill amqp091 backoff internal/middleware internal/backend internal/unpublished retry rabbitmq internal/msgctx internal/faults internal/gate internal/options internal/rabbitmq internal/subscriptions internal/warning",
		never: "amqpPubSub config", why: "all majors of watermill-amqp share it, and an app compiles only its own major"},
	{folder: "rabbitmq/deadletter", may: "internal/each internal/pauses internal/faults watermill amqp091 backoff letters internal/middleware internal/unpublished retry rabbitmq/publish rabbitmq/topology internal/letterline internal/recordkey internal/redrive internal/shell internal/users internal/warning internal/rabbitmq",
		never: "amqpPubSub config internal/rabbitmq/subscriber", why: "it works beside any app, and on letters that no app of this library wrote: it needs neither schedule nor handlers"},
	{folder: "letters/page", may: "internal/each internal/faults internal/lettertext internal/recordkey internal/operate watermill backoff letters internal/middleware retry internal/rabbitmq/command",
		never: "amqp091 amqpPubSub config rabbitmq/deadletter", why: "it is HTTP over any letters.Store: what AMQP does belongs in the Store"},
	{folder: "internal/cause",
		why: "it is text: the middleware logs what letters are found by"},
	{folder: "internal/recordkey",
		why: "keys are text"},
	{folder: "internal/rabbitmq/queuearg",
		why: "argument names are text"},
	{folder: "internal/rabbitmq/redelivery", never: "watermill amqp091",
		why: "headers are plain values"},
	{folder: "internal/rabbitmq/naming", may: "backoff", never: "amqp091",
		why: "names are text"},
	{folder: "internal/rabbitmq/wire", may: "internal/tasks internal/pauses watermill amqp091 retry rabbitmq/publish internal/rabbitmq/socket",
		never: "internal/rabbitmq/publisher internal/rabbitmq/subscriber", why: "publishing, consuming and inspecting dial in the same way"},
	{folder: "internal/rabbitmq/unfit", may: "amqp091", never: "watermill",
		why: "every writer of copies reads one list"},
	{folder: "internal/rabbitmq/socket", never: "watermill amqp091",
		why: "it is a network connection, independent of what is written to it"},
	{folder: "internal/rabbitmq/model", may: "amqp091", never: "watermill",
		why: "it has the rules of the broker, and none of the library that is tested with it"},
	{folder: "internal/rabbitmq/management", may: "internal/pauses", never: "watermill amqp091",
		why: "it is HTTP, and knows nothing of AMQP"},
	{folder: "internal/rabbitmq/refusal", may: "amqp091", never: "watermill",
		why: "it reads the broker's errors, for every operation that causes them"},
	{folder: "internal/rabbitmq/headers", may: "watermill amqp091 internal/msgctx internal/rabbitmq/app internal/unpublished internal/recordkey internal/panics retry rabbitmq/publish internal/rabbitmq/failure internal/rabbitmq/publisher internal/rabbitmq/wire internal/rabbitmq/naming internal/rabbitmq/unfit",
		never: "rabbitmq/topology", why: "the header codec changes with AMQP and the failure record, not with the topology"},
	{folder: "internal/rabbitmq/workqueue", may: "watermill amqp091 internal/warning rabbitmq/topology internal/rabbitmq/queuearg internal/rabbitmq/wire internal/rabbitmq/naming internal/rabbitmq/refusal internal/shell rabbitmq/publish",
		never: "internal/middleware internal/rabbitmq/publisher", why: "inspecting a queue changes with the broker's versions, not with retries"},
	{folder: "internal/rabbitmq/ask", may: "amqp091 internal/rabbitmq/command", never: "amqpPubSub internal/middleware config",
		why: "it asks over AMQP: what is asked and answered is known without it"},
	{folder: "internal/rabbitmq/command", may: "retry internal/gate internal/lettertext internal/rabbitmq/naming internal/shell",
		never: "amqp091 amqpPubSub internal/middleware config internal/rabbitmq/subscriber", why: "it is what the apps and the command say to each other: neither imports the other"},
	{folder: "config", may: "watermill amqpPubSub/v2 amqp091 backoff internal/rabbitmq internal/middleware retry rabbitmq",
		never: "rabbitmq/deadletter", why: "it is the door to watermill-amqp v2 and nothing else"},
	{folder: "internal/configtest", may: "watermill amqp091 testify internal/rabbitmq/app", never: "amqpPubSub",
		why: "the tests of all majors share it"},
	{folder: "internal/rabbitmq/app", may: "watermill amqp091", never: "amqpPubSub internal/middleware rabbitmq",
		why: "the doors of all majors fill it"},
	{folder: "internal/inflight", may: "internal/tasks internal/pauses watermill internal/subscriptions retry", never: "amqp091",
		why: "the leases of Redis, NATS and PostgreSQL without any of them"},
	{folder: "internal/subscriptions", may: "internal/gate internal/middleware retry", never: "amqp091",
		why: "the Health of every Connection without AMQP"},
	{folder: "internal/msgctx", may: "watermill internal/gate", never: "amqp091",
		why: "every subscriber binds its messages for the middleware"},
	{folder: "inbox", may: "watermill internal/inbox internal/pooler", never: "amqp091 amqpPubSub",
		why: "it is for every backend, and for every driver of PostgreSQL"},
	{folder: "internal/pooler", may: "internal/sqlstate",
		why: "modules with drivers of PostgreSQL share it"},
	{folder: "internal/sqlstate",
		why: "every driver of PostgreSQL has it"},
	{folder: "internal/inbox", may: "internal/sqlstate watermill backoff internal/msgbytes internal/msgctx internal/panics internal/warning letters",
		never: "amqp091 amqpPubSub", why: "modules with drivers share it"},
	{folder: "internal/msgbytes", may: "watermill", never: "amqp091",
		why: "every server that keeps messages keeps the same bytes"},
	{folder: "internal/faults", never: "watermill amqp091",
		why: "it joins errors: the Connections of every backend share it"},
	{folder: "internal/gate", may: "retry", never: "amqp091 amqpPubSub",
		why: "it counts places: subscriptions of every backend and the middleware share it"},
	{folder: "internal/users", never: "watermill amqp091",
		why: "it counts: whatever is closed after its last user shares it"},
	{folder: "internal/pauses", never: "watermill amqp091",
		why: "it is time: whatever tries again shares it"},
	{folder: "internal/tasks", never: "watermill amqp091",
		why: "it is goroutines: whatever is closed shares it"},
	{folder: "internal/shell",
		why: "it quotes text: every command that is printed for an operator needs it"},
	{folder: "internal/warning", may: "watermill", never: "amqp091",
		why: "every package may log a warning"},
	{folder: "example", may: "watermill amqpPubSub amqp091 backoff middleware retry rabbitmq rabbitmq/topology config relay",
		why: "it imports only packages that a user imports"},
	{folder: "example/orders", may: "watermill backoff middleware retry relay",
		never: "amqp091 amqpPubSub config internal/rabbitmq/publisher", why: "the app is the same on every backend: each backend has one file for the differences"},
	{folder: "relay", may: "internal/pauses internal/panics internal/relaytopic internal/options watermill backoff internal/msgctx internal/faults internal/gate internal/recordkey internal/subscriptions internal/users internal/warning internal/middleware internal/backend internal/unpublished retry",
		never: "amqp091 amqpPubSub", why: "it is for the other Pub/Subs: an app without RabbitMQ must not compile its client"},
	{folder: "retrytest", may: "internal/faults internal/options watermill backoff internal/msgctx internal/gate internal/subscriptions internal/middleware internal/backend internal/letterline letters retry",
		never: "amqp091 amqpPubSub", alone: true, why: "an app tests its retries with the code that it runs in production, without the client of a broker"},
	{folder: "retrytest/rabbit", may: "amqp091 internal/rabbitmq/model", never: "watermill",
		why: "it is a broker: it works with every client, and knows nothing of the library that is tested with it"},
	{folder: "tools/server", never: "watermill amqp091",
		why: "it starts servers of any kind: what is special to one is in the module that needs it"},
	{folder: "tools/prometheus", may: "tools/server", never: "watermill amqp091",
		why: "it starts a Prometheus: what is scraped and asked is in the tests and the example"},
	{folder: "tools/mutate", never: "watermill amqp091",
		why: "it reads the code as text, and runs the go command: it builds also where the code does not"},
	{folder: "tools/release", never: "watermill amqp091",
		why: "it runs git and the go command: a release must not depend on what it releases"},
	{folder: "tools/child", never: "watermill amqp091",
		why: "it starts processes: what they do is in the programs that start them"},
	{folder: "tools/claims", never: "watermill amqp091",
		why: "it compares figures with claims: how a figure is measured is in the programs of make bench"},
	{folder: "tools/devbroker", may: "tools/server amqp091", never: "watermill",
		why: "it is built first: the tests of the other packages run with its broker"},
	{folder: "internal/layout",
		why: "nothing may import the tests of the layout"},
}

// testOnly are modules for tests. A program that imports the library must not contain them.
var testOnly = []string{
	"github.com/stretchr/testify", "go.uber.org/goleak", "github.com/michaelklishin/rabbit-hole",
	module + "/internal/configtest", module + "/internal/operatetest", module + "/internal/rabbitmq/model", module + "/internal/rabbitmq/channeltest", module + "/retrytest",
}

// TestMajorsAreApart: an app gets its own major of watermill-amqp and no other.
func TestMajorsAreApart(t *testing.T) {
	t.Parallel()
	if strings.Contains(goTool(t, "mod", "edit", "-print", "../../go.mod"), "replace") {
		t.Error("go.mod must not replace a module: the build of an app ignores that")
	}
	for _, door := range []struct{ folder, major, other string }{
		{"config", amqpPubSub + "/v2", amqpPubSub + "/v3"},
		{"config/amqp3", amqpPubSub + "/v3", amqpPubSub + "/v2"},
	} {
		compiled := strings.Fields(goTool(t, "list", "-C", "../../"+door.folder, "-deps", "."))
		if !slices.Contains(compiled, door.major+"/pkg/amqp") {
			t.Errorf("package %s is not built from %s", door.folder, door.major)
		}
		for _, p := range compiled {
			if within(p, append(testOnly, door.other, module+"/rabbitmq/deadletter")) {
				t.Errorf("package %s must not depend on %s", door.folder, p)
			}
		}
	}
}

// direct lists the modules that the root module may require directly. Each of them, with its own requirements, is in the module
// graph of every user.
var direct = []string{
	watermill, amqpPubSub + "/v2", amqp091, gobreaker, "github.com/stretchr/testify",
}

type listed struct {
	ImportPath    string
	Imports, Deps []string
}

// packages are those of the root module. A nested module, such as integration, is not among them.
func packages(t *testing.T) []listed {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(goTool(t, "list", "-e", "-json=ImportPath,Imports,Deps", module+"/...")))
	var all []listed
	for {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

func goTool(t *testing.T, args ...string) string {
	t.Helper()
	output, err := exec.Command("go", args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go %s: %v\n%s", args[0], err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return string(output)
}

func TestImportDirection(t *testing.T) {
	t.Parallel()
	all := packages(t)
	for _, r := range rules {
		t.Run(r.folder, func(t *testing.T) {
			t.Parallel()
			if !slices.ContainsFunc(all, r.covers) {
				t.Fatalf("there is no package %s: correct or remove its rule", r.folder)
			}
			for _, p := range all {
				if r.covers(p) {
					for _, fault := range r.faults(p) {
						t.Errorf("%s %s: %s", p.ImportPath, fault, r.why)
					}
				}
			}
		})
	}
	for _, p := range all {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.covers(p) }) {
			t.Errorf("%s has no rule: add one with its permitted imports and the reason", p.ImportPath)
		}
	}
}

// TestObserveNeedsNoBackend: the observers of module observe get what every backend has.
func TestObserveNeedsNoBackend(t *testing.T) {
	t.Parallel()
	for _, dependency := range strings.Fields(goTool(t, "list", "-C", "../../observe", "-deps", "./...")) {
		if within(dependency, []string{amqp091, amqpPubSub, module + "/rabbitmq", module + "/relay", module + "/retrytest"}) {
			t.Errorf("module observe depends on %s: it works with any backend through backend.Observed", dependency)
		}
	}
}

func TestTestOnlyModulesStayInTests(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if within(p.ImportPath, testOnly) {
			continue
		}
		for _, dependency := range p.Deps {
			if within(dependency, testOnly) {
				t.Errorf("%s depends on %s, which is for tests", p.ImportPath, dependency)
			}
		}
	}
}

type required struct {
	Path     string
	Indirect bool
}

// requires returns the modules that the go.mod in a folder requires.
func requires(t *testing.T, folder string) []required {
	t.Helper()
	var file struct{ Require []required }
	require.NoError(t, json.Unmarshal([]byte(goTool(t, "mod", "edit", "-C", "../../"+folder, "-json")), &file))
	return file.Require
}

// nestedModules are the folders of the modules whose tests `go test ./...` of the root module does not run.
var nestedModules = append(backendModules(), "backends/conformance", "cmd/wmretry", "config/amqp3", "example/observability",
	"inbox/pgxinbox", "integration", "observe")

// backendModules returns the folders of the modules that have a backend each. They are released.
func backendModules() (folders []string) {
	files, _ := filepath.Glob("../../backends/*/go.mod")
	for _, file := range files {
		if folder := path.Base(path.Dir(filepath.ToSlash(file))); folder != "conformance" {
			folders = append(folders, "backends/"+folder)
		}
	}
	return folders
}

// TestEachModuleIsTested: a target of the Makefile that CI runs has the tests of each module.
func TestEachModuleIsTested(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile").text
	tested := func(folder string) bool {
		return regexp.MustCompile(`\$\(GO\) test -C ` + folder + ` [^\n]*-count=1`).MatchString(makefile)
	}
	loop := strings.Contains(makefile, "for module in $(BACKENDS); do") && tested(`\$\$module`)
	for _, folder := range nestedModules {
		if !tested(folder) && !(loop && slices.Contains(backendModules(), folder)) {
			t.Errorf("no target of the Makefile runs the tests of module %s", folder)
		}
	}
}

// TestRequirements: a dependency of a nested module only must not be in the module graph of every user.
func TestRequirements(t *testing.T) {
	t.Parallel()
	nested := map[string]string{}
	for _, folder := range nestedModules {
		for _, r := range requires(t, folder) {
			if !r.Indirect && !slices.Contains(direct, r.Path) {
				nested[r.Path] = folder
			}
		}
	}
	for _, r := range requires(t, ".") {
		if !r.Indirect && !slices.Contains(direct, r.Path) {
			t.Errorf("go.mod requires %s: move the package that imports it to a nested module, or add the module to direct", r.Path)
		}
		if folder := nested[r.Path]; folder != "" {
			t.Errorf("go.mod requires %s: it belongs in %s/go.mod only", r.Path, folder)
		}
	}
}

func (r rule) covers(p listed) bool {
	folder := path.Join(module, r.folder)
	return p.ImportPath == folder || !r.alone && within(p.ImportPath, []string{folder})
}

func (r rule) faults(p listed) (faults []string) {
	for _, imported := range p.Imports {
		if !standard(imported) && !within(imported, paths(r.may+" "+r.folder)) {
			faults = append(faults, "must not import "+imported)
		}
	}
	for _, dependency := range p.Deps {
		if within(dependency, paths(r.never)) {
			faults = append(faults, "must not depend on "+dependency)
		}
	}
	return faults
}

// paths returns the import paths of words.
func paths(words string) (all []string) {
	for word := range strings.FieldsSeq(words) {
		all = append(all, cmp.Or(others[word], module+"/"+word))
	}
	return all
}

// standard reports whether a package is in the standard library: its import path has no dot in the first element.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// within reports whether a package is one of these or below one of them.
func within(path string, tops []string) bool {
	return slices.ContainsFunc(tops, func(top string) bool {
		return path == top || strings.HasPrefix(path, top+"/")
	})
}
