package board_test

import (
	"regexp"
	"slices"
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
