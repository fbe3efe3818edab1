package retry_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// columns maps each column of the table of docs/brokers.md to the versions that it describes. Each broker is tested against its
// column.
var columns = map[string]string{"3.10": `^3\.1[0-3]\.`, "4.0": `^4\.[012]\.`, "4.3": `^4\.[34]\.`}

const (
	defaultLimit     = "delivery limit of a quorum queue without that argument"
	nacksCount       = "a nack counts towards it"
	forgedDeaths     = "`x-death` that a client sends"
	nativeDelays     = "native delayed retry (`x-delayed-retry-type`)"
	transientQueues  = "queues neither durable nor exclusive"
	unprotectedDrops = "an unprotected quorum queue drops a message that is requeued too often" // it follows from the first two
	prioritiesApart  = "a prioritised message delays the others of a quorum queue with a TTL"
	passiveDeclares  = "checking that a queue exists requires a permission on it"
)

// rows lists the rows of the table in their order, with their cells. The tests refuse any other row or cell.
var rows = []struct {
	name  string
	cells []string
}{
	{defaultLimit, []string{"none", "20"}},
	{nacksCount, []string{"yes", "no, a reject or a lost channel does"}},
	{forgedDeaths, []string{"kept", "ignored"}},
	{nativeDelays, []string{"ignored", "linear, without a failure record"}},
	{transientQueues, []string{"yes", "refused"}},
	{unprotectedDrops, []string{"only with a limit of its own", "after 20 nacks", "after 20 rejects or lost channels"}},
	{prioritiesApart, []string{"no", "yes"}},
	{passiveDeclares, []string{"no", "yes"}},
}

// is reports whether the broker has this cell of a row.
func is(t *testing.T, row, cell string) bool {
	t.Helper()
	version, _ := broker.Connect(t).Properties["version"].(string)
	table := brokersTable(t)
	for i, column := range table[0] {
		if versions, known := columns[column]; known && regexp.MustCompile(versions).MatchString(version) {
			for j := range rows {
				if rows[j].name == row {
					require.Contains(t, rows[j].cells, cell)
					return table[j+1][i] == cell
				}
			}
		}
	}
	require.Failf(t, "unknown generation", "RabbitMQ %s is in no column of the table of docs/brokers.md: add one", version)
	return false
}

// brokersTable returns the table, its head and its rows, cell by cell.
func brokersTable(t *testing.T) (table [][]string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/brokers.md")
	require.NoError(t, err)
	_, body, _ := strings.Cut(string(page), "\n| RabbitMQ |")
	body, _, _ = strings.Cut("| RabbitMQ |"+body, "\n\n")
	for line := range strings.Lines(body) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(cells[0], "---") {
			table = append(table, cells)
		}
	}
	require.Len(t, table, 1+len(rows), "every row of docs/brokers.md has its test")
	return table
}

// TestBrokersTableIsTested: every row and every cell of it has a meaning for the tests, and it has a column for each version that
// CI tests, and no other.
func TestBrokersTableIsTested(t *testing.T) {
	t.Parallel()
	table := brokersTable(t)
	var seen []string
	for i, column := range table[0] {
		if _, known := columns[column]; known {
			seen = append(seen, column)
			for j, row := range rows {
				assert.Equal(t, row.name, table[j+1][0])
				assert.Contains(t, row.cells, table[j+1][i], "%s, %s", row.name, column)
			}
		}
	}
	list, err := os.ReadFile("../../tools/rabbitmq-versions")
	require.NoError(t, err)
	assert.ElementsMatch(t, strings.Fields(string(list)), seen)
	assert.ElementsMatch(t, seen, slices.Collect(maps.Keys(columns)))
}
