// Package layout holds the packages to the import direction of the design: example → config → internal/builder →
// {topology, publisher, middleware} → backoff.
package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	module     = "github.com/tieredretry/watermill-retry"
	watermill  = "github.com/ThreeDotsLabs/watermill"
	amqp       = "github.com/rabbitmq/amqp091-go"
	amqpPubSub = "github.com/ThreeDotsLabs/watermill-amqp"
)

// rule says what a package, and every package below it, may import besides the standard library.
type rule struct {
	folder string
	may    []string
	// never holds for what the imports import, too.
	never []string
	why   string
}

var rules = []rule{
	{
		folder: "backoff",
		never:  []string{watermill, amqp},
		why:    "when to retry is arithmetic: whoever wants only a schedule gets no dependency with it",
	},
	{
		folder: "middleware",
		may:    []string{watermill, module + "/backoff"},
		never:  []string{amqp, amqpPubSub},
		why:    "a router can swap its Pub/Sub only while what to do on failure knows nothing of AMQP",
	},
	{
		folder: "rabbitmq/publisher",
		may:    []string{watermill, amqp, module + "/rabbitmq/internal/dial", module + "/rabbitmq/internal/socket"},
		never:  []string{amqpPubSub, module + "/config", module + "/middleware"},
		why:    "publishing surely is of use without this topology: what it needs of one is a hook",
	},
	{
		folder: "rabbitmq/subscriber",
		may:    []string{watermill, amqp, module + "/rabbitmq/internal/dial", module + "/rabbitmq/internal/socket"},
		never:  []string{amqpPubSub, module + "/config", module + "/middleware"},
		why:    "consuming is of use without this topology and without retries: what it needs of them are hooks",
	},
	{
		folder: "rabbitmq/topology",
		may:    []string{amqp, module + "/backoff", module + "/rabbitmq/internal/naming", module + "/rabbitmq/internal/refusal"},
		never:  []string{watermill, amqpPubSub},
		why:    "what the broker needs is plain data, for a deployment or an operator's tool that has no Watermill",
	},
	{
		folder: "rabbitmq",
		may: []string{
			watermill, amqp, module + "/backoff", module + "/middleware", module + "/rabbitmq/publisher", module + "/rabbitmq/topology",
			module + "/rabbitmq/internal/dial", module + "/rabbitmq/internal/naming", module + "/rabbitmq/internal/refusal",
		},
		never: []string{amqpPubSub},
		why:   "all majors of watermill-amqp share it, and nobody has to compile another than the own",
	},
	{
		folder: "config",
		may: []string{
			watermill, amqpPubSub + "/v2", amqp, module + "/backoff", module + "/middleware", module + "/rabbitmq/publisher", module + "/rabbitmq/topology",
			module + "/rabbitmq",
		},
		never: []string{amqpPubSub + "/v3"},
		why:   "it is the edge to one major of watermill-amqp; configv3, a module of its own, is the other",
	},
	{
		folder: "rabbitmq/internal/naming",
		may:    []string{module + "/backoff"},
		never:  []string{amqp},
		why:    "names are text",
	},
	{
		folder: "internal/configtest",
		may: []string{
			watermill, amqp, "github.com/stretchr/testify", module + "/backoff", module + "/middleware", module + "/rabbitmq/publisher", module + "/rabbitmq/topology",
			module + "/rabbitmq",
		},
		never: []string{amqpPubSub},
		why:   "the tests of all majors share it",
	},
	{
		folder: "rabbitmq/internal/dial",
		may:    []string{amqp, module + "/rabbitmq/internal/socket"},
		never:  []string{watermill},
		why:    "publishing, consuming and looking at the broker dial alike",
	},
	{folder: "rabbitmq/internal/socket", never: []string{watermill, amqp}, why: "it is a network connection, and does not know what is written to it"},
	{folder: "rabbitmq/internal/refusal", may: []string{amqp}, never: []string{watermill}, why: "it reads what the broker says, whoever asked"},
	{
		folder: "example",
		may: []string{
			watermill, amqpPubSub, amqp,
			module + "/backoff", module + "/middleware", module + "/rabbitmq/publisher", module + "/config", module + "/relay",
		},
		why: "it shows what a user imports, and nothing that a user does not have",
	},
	{
		folder: "example/orders",
		may:    []string{watermill, module + "/backoff", module + "/middleware", module + "/relay"},
		never:  []string{amqp, amqpPubSub, module + "/config", module + "/rabbitmq/publisher"},
		why:    "the app is the same on every backend: all that differs is in one file for each",
	},
	{
		folder: "relay",
		may:    []string{watermill, module + "/backoff", module + "/middleware"},
		never:  []string{amqp, amqpPubSub},
		why:    "it is for every other Pub/Sub: whoever has no RabbitMQ gets none of its client",
	},
	{
		folder: "retrytest",
		may:    []string{watermill, module + "/backoff", module + "/middleware", module + "/relay"},
		never:  []string{amqp, amqpPubSub},
		why:    "an app tests its retries with what it runs in production, and with no broker's client",
	},
	{
		folder: "internal/debian",
		never:  []string{watermill, amqp},
		why:    "it installs what the tests run on, before they run",
	},
	{
		folder: "internal/devbroker",
		may:    []string{module + "/internal/debian"},
		never:  []string{watermill, amqp},
		why:    "it is built before anything else, to run the tests of all the rest",
	},
	{folder: "internal/layout", why: "it judges the packages and takes no part"},
}

// testOnly are modules for tests: whoever imports the library must not come to have them in a program.
var testOnly = []string{
	"github.com/stretchr/testify", "go.uber.org/goleak", "github.com/Shopify/toxiproxy", "github.com/michaelklishin/rabbit-hole",
	module + "/internal/configtest", module + "/retrytest",
}

// majors of watermill-amqp are apart: the module of a folder, and the package there, have one and never the other.
var majors = []struct{ folder, pkg, major, other string }{
	{".", "./config", amqpPubSub + "/v2", amqpPubSub + "/v3"},
	{"configv3", ".", amqpPubSub + "/v3", amqpPubSub + "/v2"},
}

func TestMajorsAreApart(t *testing.T) {
	t.Parallel()
	for _, m := range majors {
		folder := "../../" + m.folder
		requires := strings.Fields(goTool(t, "mod", "edit", "-C", folder, "-print"))
		if !slices.Contains(requires, m.major) || slices.Contains(requires, m.other) {
			t.Errorf("%s/go.mod has to require %s and not %s", m.folder, m.major, m.other)
		}
		sums, err := os.ReadFile(folder + "/go.sum")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(sums), m.other+" ") {
			t.Errorf("%s/go.sum has %s: a test has come to need it, and go mod tidy fetches it for every user", m.folder, m.other)
		}
		compiled := strings.Fields(goTool(t, "list", "-C", folder, "-deps", m.pkg))
		if !slices.Contains(compiled, m.major+"/pkg/amqp") {
			t.Errorf("%s is not built from %s", m.folder, m.major)
		}
		for _, p := range compiled {
			if within(p, append(testOnly, m.other)) {
				t.Errorf("%s depends on %s", m.folder, p)
			}
		}
	}
}

// otherPubSubs are for the module backends.
var otherPubSubs = []string{
	"github.com/ThreeDotsLabs/watermill-nats", "github.com/ThreeDotsLabs/watermill-redisstream", "github.com/ThreeDotsLabs/watermill-sql",
	"github.com/ThreeDotsLabs/watermill-kafka", "github.com/nats-io", "github.com/redis", "github.com/jackc", "github.com/lib/pq",
	"github.com/IBM/sarama", "github.com/twmb",
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
		if err != nil {
			t.Fatal(err)
		}
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
				t.Fatalf("there is no package %s: a rule without its package is a mistake in one of them", r.folder)
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
			t.Errorf("%s has no rule: say in rules what it may import, and why", p.ImportPath)
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
	var file struct{ Require []struct{ Path string } }
	if err := json.Unmarshal([]byte(goTool(t, "mod", "edit", "-json", "../../go.mod")), &file); err != nil {
		t.Fatal(err)
	}
	for _, required := range file.Require {
		if within(required.Path, []string{"github.com/Shopify/toxiproxy", "github.com/michaelklishin/rabbit-hole"}) {
			t.Errorf("go.mod requires %s: it belongs in integration/go.mod, out of every user's module graph", required.Path)
		}
		if within(required.Path, otherPubSubs) {
			t.Errorf("go.mod requires %s: it belongs in backends/go.mod, out of every user's module graph", required.Path)
		}
	}
}

// TestRulesFindFaults makes sure that the rules can fail.
func TestRulesFindFaults(t *testing.T) {
	t.Parallel()
	r := rule{folder: "middleware", may: []string{watermill}, never: []string{amqp}}
	for _, test := range []struct {
		name string
		p    listed
		want int
	}{
		{"allowed", listed{Imports: []string{"context", "net/http", watermill + "/message"}}, 0},
		{"its own packages", listed{Imports: []string{module + "/middleware/record"}}, 0},
		{"another module of a like name", listed{Imports: []string{watermill + "-amqp/v2/pkg/amqp"}}, 1},
		{"not allowed", listed{Imports: []string{module + "/config"}}, 1},
		{"by way of an import", listed{Deps: []string{amqp}}, 1},
	} {
		if got := r.faults(test.p); len(got) != test.want {
			t.Errorf("%s: %q, want %d", test.name, got, test.want)
		}
	}
	if !within(testOnly[2]+"/v2/client", testOnly) {
		t.Error("a package of a test-only module is not seen")
	}
}

func (r rule) covers(p listed) bool { return within(p.ImportPath, []string{module + "/" + r.folder}) }

func (r rule) faults(p listed) (faults []string) {
	for _, imported := range p.Imports {
		if !standard(imported) && !within(imported, append(r.may, module+"/"+r.folder)) {
			faults = append(faults, "must not import "+imported)
		}
	}
	for _, dependency := range p.Deps {
		if within(dependency, r.never) {
			faults = append(faults, "must not depend on "+dependency)
		}
	}
	return faults
}

// standard: the standard library's import paths have no dot in their first element.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// within tells whether a package is one of these or below one of them.
func within(path string, tops []string) bool {
	return slices.ContainsFunc(tops, func(top string) bool {
		return path == top || strings.HasPrefix(path, top+"/")
	})
}
