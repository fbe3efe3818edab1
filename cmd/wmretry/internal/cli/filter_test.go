package cli

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestIDs: an id can have a comma and quotes, given by a flag of its own.
func TestIDs(t *testing.T) {
	t.Parallel()
	selected := func(args ...string) ([]string, error) {
		var f filterFlags
		c := &cobra.Command{}
		f.add(c)
		if err := c.ParseFlags(args); err != nil {
			return nil, err
		}
		filter, err := f.filter()
		assert.Equal(t, len(filter.IDs) > 0, f.any())
		return filter.IDs, err
	}
	for want, args := range map[string][]string{
		`a,b`:   {"--id", `a,b`},
		`a"b`:   {"--id", `a"b`},
		`"a,b"`: {"--id", `"a,b"`},
		`it's`:  {"--id", `it's`},
		`c,d`:   {"--ids", `"c,d"`},
	} {
		got, err := selected(args...)
		require.NoError(t, err)
		assert.Equal(t, []string{want}, got)
	}
	got, err := selected("--ids", "a,b", "--id", "c,d", "--id", "e", "--ids", "f", "--ids", "")
	require.NoError(t, err)
	assert.Equal(t, []string{"c,d", "e", "a", "b", "f"}, got)
	_, err = selected("--ids", `a"b`)
	require.ErrorContains(t, err, "give an id with a double quote as --id")
}
