package postgresretry

import (
	"strings"
	"testing"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// PostgreSQL cuts the names of tables at 63 bytes, and two topics with one table get each other's messages.
func TestTopicsThatWouldShareATable(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		length    int
		subscribe bool
		refused   string
	}{
		{45, true, ""}, {46, true, "64 bytes"}, {53, false, ""}, {54, false, "64 bytes"},
	} {
		err := checkTopic(strings.Repeat("t", row.length), row.subscribe)
		if row.refused == "" {
			assert.NoError(t, err, "%+v", row)
		} else if assert.ErrorContains(t, err, row.refused) {
			assert.ErrorContains(t, err, "use a topic of at most")
		}
	}
	require.ErrorContains(t, checkTopic("offsets_orders", false), `offsets of topic "orders"`)
	require.ErrorIs(t, checkTopic(`a"; DROP TABLE b`, false), wmsql.ErrInvalidTopicName)
	require.NoError(t, checkTopic("orders.eu:1-$2_3", true))
}
