package kept

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/testapp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestKeptDataIsReadRetriedAndRedriven: what an earlier state of the library left on a broker of each version is all
// there for the present one. The kept file says what is expected.
func TestKeptDataIsReadRetriedAndRedriven(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.json")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(names), 3, "a file is removed only with the promise of docs/compatibility.md to read it")
	for _, name := range names {
		t.Run("kept on "+strings.TrimSuffix(name, ".json"), func(t *testing.T) {
			t.Parallel()
			f := read(t, name)
			want, got := f.Expected, play(t, f)
			if os.Getenv("KEPT_EXPECTED") == "write" {
				f.Expected = got
				f.write(t, name)
				return
			}
			same(t, want.Declared, got.Declared, "the exchanges, queues and bindings of the apps")
			same(t, want.Letters, got.Letters, "the letters")
			same(t, want.Causes, got.Causes, "the causes of the letters")
			same(t, want.Calls, got.Calls, "the calls of the handlers")
			same(t, want.Died, got.Died, "the letters that died again")
			testapp.CheckExport(t, got.exported)
			same(t, want.LeftOver, got.LeftOver, "the messages that are left over")
		})
	}
}

// same compares each element of the lists of two values, as JSON.
func same(t *testing.T, want, got any, what string) {
	t.Helper()
	wanted, had := elements(t, want), elements(t, got)
	for element, n := range wanted {
		if missing := n - had[element]; missing > 0 {
			t.Errorf("%s lack (%d) %s", what, missing, element)
		}
	}
	for element, n := range had {
		if more := n - wanted[element]; more > 0 {
			t.Errorf("%s also have (%d) %s", what, more, element)
		}
	}
}

// elements counts the elements of the lists in a value.
func elements(t *testing.T, of any) map[string]int {
	t.Helper()
	counts := map[string]int{}
	text, err := json.Marshal(of)
	require.NoError(t, err)
	var plain any
	require.NoError(t, json.Unmarshal(text, &plain))
	lists, named := plain.(map[string]any)
	if !named {
		lists = map[string]any{"": plain}
	}
	for name, list := range lists {
		all, isList := list.([]any)
		if !isList {
			all = []any{list}
		}
		for _, element := range all {
			text, err := json.Marshal(element)
			require.NoError(t, err)
			counts[strings.TrimSpace(name+" "+string(text))]++
		}
	}
	return counts
}
