package layout

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

var (
	outcomeList     = regexp.MustCompile(`outcome=~\\?"([a-z |-]+)`)
	alertName       = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	runbookURL      = regexp.MustCompile(`(?m)^ +runbook_url: (\S+)$`)
	outcomeConstant = regexp.MustCompile(`(?m)^\t(\w+) Outcome = "([^"]+)"$`)
	boardTitle      = regexp.MustCompile(`"title": ?"([^"]+)"`)
	titleWords      = regexp.MustCompile("`([A-Z][^`]*)`")
)

// TestRunbooks: each alert links to its part of docs/operations.md, which has three paragraphs. What it names is on a board or in the log.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	rules, page := read(t, "observability/alerts/watermill-retry.yml").text, read(t, "docs/operations.md").text
	names, urls := alertName.FindAllStringSubmatch(rules, -1), runbookURL.FindAllStringSubmatch(rules, -1)
	if len(names) == 0 || len(names) != len(urls) {
		t.Fatalf("%d alerts have %d runbooks", len(names), len(urls))
	}
	_, section, _ := strings.Cut(page, "\n## Alerts\n")
	section, _, _ = strings.Cut(section, "\n## ")
	parts := map[string]string{}
	for _, part := range strings.Split(section, "\n### ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		parts[name] = text
	}
	titles := boardTitles(t)
	for i, name := range names {
		if want := "https://" + module + "/blob/main/docs/operations.md#" + strings.ToLower(name[1]); urls[i][1] != want {
			t.Errorf("the runbook of %s is %s, not %s", name[1], urls[i][1], want)
		}
		text, exists := parts[name[1]]
		delete(parts, name[1])
		if !exists {
			t.Errorf("docs/operations.md has no part ### %s", name[1])
		}
		for _, paragraph := range []string{"\n**Means:** ", "\n**Look at:** ", "\n**Do:** "} {
			if strings.Count(text, paragraph) != 1 {
				t.Errorf("the runbook of %s does not have one paragraph %q", name[1], strings.TrimSpace(paragraph))
			}
		}
		_, look, _ := strings.Cut(text, "**Look at:**")
		look, _, _ = strings.Cut(look, "**Do:**")
		for _, title := range titleWords.FindAllStringSubmatch(look, -1) {
			if !slices.ContainsFunc(titles, func(known string) bool { return strings.HasPrefix(known, title[1]) }) {
				t.Errorf("the runbook of %s names %q, which is neither on a board nor a line of the log", name[1], title[1])
			}
		}
	}
	for name := range parts {
		t.Errorf("docs/operations.md has the runbook %s, for which there is no alert", name)
	}
}

// TestListsHaveEveryOutcome: two tests list the outcomes by hand.
func TestListsHaveEveryOutcome(t *testing.T) {
	t.Parallel()
	for _, outcome := range outcomeConstant.FindAllStringSubmatch(read(t, "retry/outcome.go").text, -1) {
		for file, begin := range map[string]string{
			"retry/outcome_test.go": "map[retry.Outcome]", "internal/middleware/decide_test.go": "var Outcomes = ",
		} {
			_, list, _ := strings.Cut(read(t, file).text, begin)
			list, _, _ = strings.Cut(list, "\n}")
			require.Contains(t, list, "retry."+outcome[1], file)
		}
	}
}

// TestQueriesCountAllThatIsGivenUp: a query that counts one outcome that gives a message up counts the others.
func TestQueriesCountAllThatIsGivenUp(t *testing.T) {
	t.Parallel()
	var givenUp []string
	for _, outcome := range outcomeConstant.FindAllStringSubmatch(read(t, "retry/outcome.go").text, -1) {
		if retry.Outcome(outcome[2]).GivenUp() {
			givenUp = append(givenUp, outcome[2])
		}
	}
	require.Greater(t, len(givenUp), 1)
	for _, file := range []string{"observability/alerts/watermill-retry.yml", "observability/dashboards/app.json", "docs/observability.md"} {
		lists := outcomeList.FindAllStringSubmatch(read(t, file).text, -1)
		require.NotEmpty(t, lists, file)
		for _, list := range lists {
			counted := slices.DeleteFunc(strings.Split(list[1], "|"), func(o string) bool { return !retry.Outcome(o).GivenUp() })
			if len(counted) > 0 && len(counted) < len(givenUp) {
				t.Errorf("%s: %q has %q of the outcomes %q", file, list[1], counted, givenUp)
			}
		}
	}
}

// boardTitles returns the titles of boards, rows and panels, the lines of the log that runbooks name, and the page of Prometheus.
func boardTitles(t *testing.T) (all []string) {
	t.Helper()
	for _, file := range []string{"observability/dashboards/app.json", "observability/dashboards/rabbitmq.json"} {
		for _, title := range boardTitle.FindAllStringSubmatch(read(t, file).text, -1) {
			all = append(all, title[1])
		}
	}
	log := read(t, "internal/middleware/events.go").text
	for _, line := range []string{"Message dead-lettered", "Handler failed"} {
		if strings.Contains(log, `"`+line) {
			all = append(all, line)
		}
	}
	return append(all, "Targets")
}

// permission finds the entries of permitted, the list that the tests on a broker use, of an app that only verifies. The
// others are printed by wmretry topology export --permissions.
var permission = regexp.MustCompile("(?m)^\t\"(?:verifies|in a group): [^\"]+\": +`(.+)`,$")

// TestPermissionsAreDocumented: docs/operations.md has the permissions of an app that only verifies, which the tests on
// a broker show to be enough and the least.
func TestPermissionsAreDocumented(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/operations.md").text
	tested := permission.FindAllStringSubmatch(read(t, "integration/retry/permissions_test.go").text, -1)
	if len(tested) != 4 {
		t.Fatalf("integration/retry/permissions_test.go has %d permissions of an app that only verifies", len(tested))
	}
	for _, p := range tested {
		if cell := " `" + strings.ReplaceAll(p[1], "|", `\|`) + "` |"; !strings.Contains(page, cell) {
			t.Errorf("docs/operations.md does not have the cell %s", cell)
		}
	}
}

var (
	configuration = regexp.MustCompile(`(?m)^== watermill-retry/(\S+)$|^type (\w*(?:Config|Settings|Options|Policy)) struct \{`)
	printedOne    = regexp.MustCompile(`(?m)^\t"([\w/]+\.\w+)": +\w+\.\w+\{\},$`)
)

// TestAllConfigurationsArePrinted: a test of backends/conformance/secrets prints every exported configuration of all
// modules, and finds no password.
func TestAllConfigurationsArePrinted(t *testing.T) {
	t.Parallel()
	var exported, printed []string
	for _, d := range files(t, func(path string) bool { return strings.HasPrefix(path, "api/") }) {
		folder := ""
		for _, found := range configuration.FindAllStringSubmatch(d.text, -1) {
			if folder = cmp.Or(found[1], folder); found[2] != "" {
				exported = append(exported, folder+"."+found[2])
			}
		}
	}
	for _, found := range printedOne.FindAllStringSubmatch(read(t, "backends/conformance/secrets/secrets_test.go").text, -1) {
		printed = append(printed, found[1])
	}
	slices.Sort(exported)
	slices.Sort(printed)
	if len(exported) < 20 || !slices.Equal(exported, printed) {
		t.Errorf("the list configs of backends/conformance/secrets must have the exported configurations\n%s\nbut has\n%s",
			lines(exported), lines(printed))
	}
}

func lines(names []string) string { return fmt.Sprint("\t", strings.Join(names, "\n\t")) }

// TestDocsListTheTestedVersions: the tests run on the versions of tools/rabbitmq-versions.
func TestDocsListTheTestedVersions(t *testing.T) {
	t.Parallel()
	versions := strings.Fields(read(t, "tools/rabbitmq-versions").text)
	if len(versions) < 2 {
		t.Fatalf("tools/rabbitmq-versions has %q", versions)
	}
	for page, claims := range versionClaims(versions) {
		for _, fault := range missing(read(t, page).text, claims) {
			t.Errorf("%s must have %q: tools/rabbitmq-versions has %q", page, fault, versions)
		}
	}
}

// versionClaims returns what each page states about these versions, the oldest first.
func versionClaims(versions []string) map[string][]string {
	newest := versions[len(versions)-1]
	list := strings.Join(versions[:len(versions)-1], ", ") + " and " + newest
	return map[string][]string{
		"README.md":       {"| RabbitMQ | " + versions[0] + " to " + newest + "; CI tests " + list + ". "},
		"docs/brokers.md": {"CI runs the tests on RabbitMQ " + list + ".", "| RabbitMQ | " + strings.Join(versions, " | ") + " |"},
	}
}

// missing returns the claims that a text does not have.
func missing(text string, claims []string) (faults []string) {
	for _, claim := range claims {
		if !strings.Contains(text, claim) {
			faults = append(faults, claim)
		}
	}
	return faults
}

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// TestCorporaAreKept: a fuzz target begins with what it has found before, and its test runs these inputs.
func TestCorporaAreKept(t *testing.T) {
	t.Parallel()
	targets := 0
	for _, d := range files(t, isTest) {
		for _, target := range fuzzTarget.FindAllStringSubmatch(d.text, -1) {
			targets++
			corpus := filepath.Join(root, filepath.Dir(d.path), "testdata/fuzz", target[1])
			if inputs, _ := os.ReadDir(corpus); len(inputs) == 0 {
				t.Errorf("%s has no inputs: copy some of `go env GOCACHE`/fuzz, after make fuzz", corpus)
			}
		}
	}
	require.NotZero(t, targets)
}

var (
	anyAction    = regexp.MustCompile(`(?m)^\s*(?:- )?uses: *(.+?) *$`)
	pinnedAction = regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$`)
)

// TestActionsArePinned: a tag of an action can be moved to other code, which would run in the workflows. A workflow that needs only to
// read cannot write.
func TestActionsArePinned(t *testing.T) {
	t.Parallel()
	for _, d := range files(t, func(path string) bool { return strings.HasPrefix(path, ".github/workflows/") }) {
		for _, fault := range workflowFaults(d.text) {
			t.Errorf("%s: %s", d.path, fault)
		}
	}
}

// workflowFaults returns the faults of a workflow.
func workflowFaults(text string) (faults []string) {
	for _, action := range anyAction.FindAllStringSubmatch(text, -1) {
		if !pinnedAction.MatchString(action[1]) && !strings.HasPrefix(action[1], "./") {
			faults = append(faults, action[1]+" must be pinned: NAME@DIGEST # VERSION")
		}
	}
	if !strings.Contains(text, "\npermissions:\n  contents: read\n\n") {
		faults = append(faults, "it must begin with the permission contents: read, and a job gets the others that it needs")
	}
	if strings.Contains(text, "pull_request_target") {
		faults = append(faults, "pull_request_target gives the code of strangers the token of this repository")
	}
	return faults
}

// TestDependenciesAreWatched: Dependabot looks at every Go module.
func TestDependenciesAreWatched(t *testing.T) {
	t.Parallel()
	config := read(t, ".github/dependabot.yml").text
	for _, d := range files(t, isModule) {
		folder := "/" + strings.TrimPrefix(path.Dir(d.path), ".")
		if !strings.Contains(config, "      - "+folder+"\n") {
			t.Errorf(".github/dependabot.yml does not have the module in %s", folder)
		}
	}
}

// TestLockHasNoRegistry: the website's packages come from the registry that npm is configured with.
func TestLockHasNoRegistry(t *testing.T) {
	t.Parallel()
	if strings.Contains(read(t, "site/package-lock.json").text, `"resolved"`) {
		t.Error("site/package-lock.json has addresses of a registry: run npm in site, where .npmrc leaves them out")
	}
}

// TestThePackageListIsComplete: doc.go of the root names each package that an app can import, and no other.
func TestThePackageListIsComplete(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z0-9]+(/[a-z0-9]+)*`).FindAllString(read(t, "doc.go").text, -1) {
		named[word] = true
	}
	var folders []string
	for _, p := range packages(t) {
		folders = append(folders, strings.TrimPrefix(p.ImportPath, module+"/"))
	}
	for _, d := range files(t, isModule) {
		if d.path != "go.mod" {
			folders = append(folders, path.Dir(d.path))
		}
	}
	hidden := regexp.MustCompile(`(^|/)(internal|example|tools|integration|conformance)(/|$)`)
	for _, folder := range folders {
		if folder != module && !hidden.MatchString(folder) && !named[folder] {
			t.Errorf("doc.go does not name %s: an app can import it", folder)
		}
	}
	for word := range named {
		if strings.Contains(word, "/") {
			if entry, err := os.Stat(filepath.Join(root, word)); err != nil || !entry.IsDir() {
				t.Errorf("doc.go names %s, which is no folder", word)
			}
		}
	}
}
