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

// generation contains what a broker version does. Its values come from the table of docs/brokers.md: each broker is tested against
// its column.
type generation struct {
	defaultLimit     bool // a quorum queue without arguments has a delivery limit
	nacksCount       bool // towards a delivery limit
	forgedDeaths     bool // x-death sent by a client is kept
	nativeDelays     bool // x-delayed-retry-type delays redeliveries
	refusesTransient bool // queues that are neither durable nor exclusive
	permitsPassive   bool // a passive declare needs a permission for the object
	prioritiesApart  bool // a quorum queue expires messages only at its head, where a prioritised message may be that is not due
}

// columns maps each column of the table to the versions that it describes.
var columns = map[string]string{"3.10": `^3\.1[0-3]\.`, "4.0": `^4\.[012]\.`, "4.3": `^4\.[34]\.`}

// rows lists the rows of the table in their order, with the meaning of each cell. The tests refuse any other row or cell.
var rows = []struct {
	name  string
	cells map[string]func(*generation)
}{
	{"delivery limit of a quorum queue without that argument", map[string]func(*generation){
		"none": nothing, "20": func(g *generation) { g.defaultLimit = true },
	}},
	{"a nack counts towards it", map[string]func(*generation){
		"yes": func(g *generation) { g.nacksCount = true }, "no, a reject or a lost channel does": nothing,
	}},
	{"`x-death` that a client sends", map[string]func(*generation){
		"kept": func(g *generation) { g.forgedDeaths = true }, "ignored": nothing,
	}},
	{"native delayed retry (`x-delayed-retry-type`)", map[string]func(*generation){
		"ignored": nothing, "linear, without a failure record": func(g *generation) { g.nativeDelays = true },
	}},
	{"queues neither durable nor exclusive", map[string]func(*generation){
		"yes": nothing, "refused": func(g *generation) { g.refusesTransient = true },
	}},
	{"an unprotected quorum queue drops a message that is requeued too often", map[string]func(*generation){ // it follows from the first two
		"only with a limit of its own": nothing, "after 20 nacks": nothing, "after 20 rejects or lost channels": nothing,
	}},
	{"a prioritised message delays the others of a quorum queue with a TTL", map[string]func(*generation){
		"yes": func(g *generation) { g.prioritiesApart = true }, "no": nothing,
	}},
	{"checking that a queue exists requires a permission on it", map[string]func(*generation){
		"yes": func(g *generation) { g.permitsPassive = true }, "no": nothing,
	}},
}

func nothing(*generation) {}

// generationOf returns the table's column for the broker.
func generationOf(t *testing.T) generation {
	t.Helper()
	version, _ := broker.Connect(t).Properties["version"].(string)
	table := brokersTable(t)
	for i, column := range table[0] {
		versions, known := columns[column]
		if !known || !regexp.MustCompile(versions).MatchString(version) {
			continue
		}
		var g generation
		for j, row := range rows {
			require.Greater(t, len(table), j+1, "the table of docs/brokers.md lacks a row")
			cell, known := row.cells[table[j+1][i]]
			require.True(t, known && row.name == table[j+1][0], "docs/brokers.md, row %q, column %s", table[j+1][0], column)
			cell(&g)
		}
		return g
	}
	require.Failf(t, "unknown generation", "RabbitMQ %s is in no column of the table of docs/brokers.md: add one", version)
	return generation{}
}

// brokersTable returns the table, its head and the rows in the order of rows, cell by cell.
func brokersTable(t *testing.T) [][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/brokers.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(page), "\n| RabbitMQ |")
	require.True(t, found, "docs/brokers.md has no table of RabbitMQ's generations")
	body, _, _ := strings.Cut("| RabbitMQ |"+after, "\n\n")
	var table [][]string
	for line := range strings.Lines(body) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(cells[0], "---") {
			table = append(table, cells)
		}
	}
	return table
}

// TestBrokersTableIsTested: every row and every cell of it has a meaning for the tests below.
func TestBrokersTableIsTested(t *testing.T) {
	t.Parallel()
	table := brokersTable(t)
	var names, want []string
	for _, row := range rows {
		want = append(want, row.name)
	}
	for _, cells := range table[1:] {
		names = append(names, cells[0])
	}
	require.Equal(t, want, names, "every row has its test, in this order")
	seen := 0
	for i, column := range table[0] {
		if _, known := columns[column]; !known {
			continue
		}
		seen++
		for j, row := range rows {
			assert.Contains(t, row.cells, table[j+1][i], "%s, %s", row.name, column)
		}
	}
	assert.Equal(t, len(columns), seen, "every column")
}

// TestColumnsAreTheTestedVersions: the table of what each version does has a column for each version that CI tests, and no other.
func TestColumnsAreTheTestedVersions(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("../../tools/rabbitmq-versions")
	require.NoError(t, err)
	assert.ElementsMatch(t, strings.Fields(string(list)), slices.Collect(maps.Keys(columns)))
}
