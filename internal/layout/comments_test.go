package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestCommentsArePlain reads the comments of all Go files, of the nested modules too. It does not read strings: some are data, such
// as the names of users.
func TestCommentsArePlain(t *testing.T) {
	t.Parallel()
	for _, d := range files(t, func(path string) bool { return filepath.Ext(path) == ".go" }) {
		faults, err := commentFaults(d.path, d.text)
		require.NoError(t, err)
		if !isTest(d.path) {
			faults = append(faults, longLines(d.path, d.text)...)
		}
		for _, fault := range faults {
			t.Error(fault)
		}
	}
}

// longLines returns the lines that have more than 120 characters. Tests may have them.
func longLines(path, text string) (faults []string) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 120 {
			faults = append(faults, fmt.Sprintf("%s:%d: the line has %d characters: at most 120", path, number, n))
		}
	}
	return faults
}

// fragment is how the comment of a field, constant or variable begins that has no noun of its own.
var fragment = regexp.MustCompile(`^(of|that|those|by|until) `)

// commentFaults returns the forbidden words in the comments of a Go file, and the trailing comments
// that are fragments, each with its position.
func commentFaults(path string, source any) (faults []string, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(file, func(node ast.Node) bool {
		var comment *ast.CommentGroup
		switch declared := node.(type) {
		case *ast.Field:
			comment = declared.Comment
		case *ast.ValueSpec:
			comment = declared.Comment
		}
		if comment != nil && fragment.MatchString(comment.Text()) && !isTest(path) {
			faults = append(faults, fmt.Sprintf("%s: %q has no noun: begin with what it is", files.Position(node.Pos()),
				strings.TrimSpace(comment.Text())))
		}
		return true
	})
	for _, comment := range file.Comments {
		for _, fault := range wordFaults(comment.Text(), forbidden) {
			faults = append(faults, files.Position(comment.Pos()).String()+": "+fault)
		}
	}
	return faults, nil
}
