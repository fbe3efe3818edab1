package board_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// token finds the parts of PromQL: a comment, a string, the label matchers in braces, a range in brackets, a list of labels, a number or
// duration, a name, and the parenthesis after it.
var token = regexp.MustCompile(`#[^\n]*|"(?:\\.|[^"\\])*"|(\{(?:"(?:\\.|[^"\\])*"|[^}"])*\})|\[[^\]]*\]|` +
	`\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)|\b[0-9][0-9a-zA-Z.]*|([a-zA-Z_:][a-zA-Z0-9_:]*)(\s*\()?`)

// keywords are the names that no parenthesis follows at once and which are no metrics: operators and aggregations.
var keywords = []string{
	"and", "or", "unless", "offset", "bool", "atan2", "group_left", "group_right",
	"sum", "min", "max", "avg", "group", "count", "topk", "bottomk", "quantile", "stddev", "stdvar", "count_values",
}

// selectors returns the selectors of an expression: the names of its metrics, each with its label matchers.
func selectors(expr string) (all []string) {
	open := false // the last part was the name of a metric
	for _, part := range token.FindAllStringSubmatch(expr, -1) {
		matchers, name, called := part[1], part[2], part[3] != ""
		switch {
		case matchers != "" && open:
			all[len(all)-1] += matchers
		case matchers != "":
			all = append(all, matchers)
		case name != "" && !called && !slices.Contains(keywords, name):
			all = append(all, name)
			open = true
			continue
		}
		open = false
	}
	return all
}

func TestSelectorsAreFound(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		`up`: `up`,
		`sum by (queue) (a{b="c", d=~"}"}) / on (e) f > 0`:        `a{b="c", d=~"}"} f`,
		`histogram_quantile(0.95, sum by (le) (rate(a_b[10m])))`:  `a_b`,
		`a{x="1"} - min_over_time(a{x="1"}[15m] offset 5m) >= 20`: `a{x="1"} a{x="1"}`,
		"a # not b\nunless group by (job) (c:d)":                  `a c:d`,
		`{job="x"} and ignoring (y) group_left (z) g`:             `{job="x"} g`,
	} {
		require.Equal(t, want, strings.Join(selectors(expr), " "), expr)
	}
}
