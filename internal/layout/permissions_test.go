package layout

import (
	"regexp"
	"strings"
	"testing"
)

// permission finds the entries of permitted, the list that the tests on a broker use.
var permission = regexp.MustCompile("(?m)^\t\"[^\"]+\": +`(.+)`,$")

// TestPermissionsAreDocumented: docs/operations.md has the permissions that the tests on a broker show to be enough and
// the least.
func TestPermissionsAreDocumented(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/operations.md").text
	tested := permission.FindAllStringSubmatch(read(t, "integration/retry/permissions_test.go").text, -1)
	if len(tested) == 0 {
		t.Fatal("integration/retry/permissions_test.go has no permissions")
	}
	for _, p := range tested {
		if cell := " `" + strings.ReplaceAll(p[1], "|", `\|`) + "` |"; !strings.Contains(page, cell) {
			t.Errorf("docs/operations.md does not have the cell %s", cell)
		}
	}
}
