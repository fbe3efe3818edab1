package layout

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	alertName  = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	runbookURL = regexp.MustCompile(`(?m)^ +runbook_url: (\S+)$`)
	boardTitle = regexp.MustCompile(`"title": ?"([^"]+)"`)
	titleWords = regexp.MustCompile("`([A-Z][^`]*)`")
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

// boardTitles returns the titles of boards, rows and panels, the lines of the log that runbooks name, and the page of Prometheus.
func boardTitles(t *testing.T) (all []string) {
	t.Helper()
	for _, file := range []string{"observability/dashboards/app.json", "observability/dashboards/rabbitmq.json"} {
		for _, title := range boardTitle.FindAllStringSubmatch(read(t, file).text, -1) {
			all = append(all, title[1])
		}
	}
	log := read(t, "middleware/events.go").text
	for _, line := range []string{"Message dead-lettered", "Handler failed"} {
		if strings.Contains(log, `"`+line) {
			all = append(all, line)
		}
	}
	return append(all, "Targets")
}
