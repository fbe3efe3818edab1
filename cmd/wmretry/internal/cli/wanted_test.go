package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

func parse(t *testing.T, args ...string) ([]topology.Topology, error) {
	t.Helper()
	var f wantedFlags
	c := &cobra.Command{}
	f.with(nil).addTo(c.Flags())
	if err := c.ParseFlags(args); err != nil {
		return nil, err
	}
	wanted, err := f.wanted("retry")
	return topologiesOf(wanted), err
}

// declared returns the topology of a builder with the schedule of one second and a change.
func declared(t *testing.T, change func(*config.Config)) topology.Topology {
	t.Helper()
	builder := config.Config{AMQP: amqp.NewDurableQueueConfig("amqp://localhost/"), Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}}}
	change(&builder)
	b, err := config.NewBuilder(builder)
	require.NoError(t, err)
	return b.Topology("orders")
}

func TestWrongDeclarations(t *testing.T) {
	for want, args := range map[string][]string{
		"no work queue is named":                    {"--schedule", "1s"},
		"--schedule is missing":                     {"--queue", "orders"},
		"such as 10s":                               {"--queue", "orders", "--schedule", "often"},
		"it has the name of a queue of the retry":   {"--queue", "orders.dead", "--schedule", "1s"},
		"--file and --queue, --schedule, --partiti": {"--file", "x.json", "--queue", "orders"},
		"--prefetch are both set":                   {"--file", "x.json", "--partitions", "8"},
		"--prefetch is 64 without --partitions":     {"--queue", "orders", "--schedule", "1s", "--prefetch", "64"},
		"Partitions is 300":                         {"--queue", "orders", "--partitions", "300"},
		"Prefetch is 0":                             {"--queue", "orders", "--partitions", "8", "--prefetch", "0"},
		"no such file":                              {"--file", "missing.json"},
	} {
		_, err := parse(t, args...)
		require.ErrorContains(t, err, want)
		assert.Equal(t, codeUsage, exitCode(err))
	}
}

func TestFiles(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "topology.json")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	for text, change := range map[string]func(*config.Config){
		`{"queues":["orders"],"schedule":"100ms 200ms"}`: func(c *config.Config) {
			c.Policy.Schedule = backoff.Schedule{100 * time.Millisecond, 200 * time.Millisecond}
		},
		`{"queues":["orders"],"schedule":"1s","queue_type":"classic","work_queue_mode":"leave","queue_arguments":{"x-queue-type":"quorum","x-max-length":10}}`: func(c *config.Config) {
			c.QueueType, c.WorkQueueMode = topology.Classic, topology.Leave
			c.AMQP.Queue.Arguments = map[string]any{"x-queue-type": "quorum", "x-max-length": int64(10)}
		},
		`{"queues":["orders"],"schedule":"1s","dead_letters":{"max_length":100,"max_age":"30d"},"tier_arguments":{"x-max-length":5},"dead_letter_arguments":{"x-queue-leader-locator":"client-local"}}`: func(c *config.Config) {
			c.DeadLetters = topology.Retention{MaxLength: 100, MaxAge: 30 * 24 * time.Hour}
			c.TierArguments, c.DeadLetterArguments = map[string]any{"x-max-length": 5}, map[string]any{"x-queue-leader-locator": "client-local"}
		},
	} {
		have, err := parse(t, "--file", file(text))
		require.NoError(t, err)
		assert.Equal(t, declared(t, change), have[0])
	}
	example := regexp.MustCompile(`(?s)\n  \[\n.*\n  \]\n`).FindString(helpOn(backend.RabbitMQ)["wmretry topology"].long)
	require.NotEmpty(t, example)
	have, err := parse(t, "--file", file(example))
	require.NoError(t, err, "the example of the help")
	require.Len(t, have, 4)
	assert.Equal(t, "slow.retry", have[2].Exchanges[0].Name)
	assert.Equal(t, true, have[3].WorkQueue.Arguments["x-single-active-consumer"])
	flags, err := parse(t, "--queue", "orders", "--queue", "billing", "--schedule", "1s 5s 25s*3 10m")
	require.NoError(t, err)
	assert.Equal(t, flags, have[:2])
	flags, err = parse(t, "--queue", "payments", "--partitions", "8")
	require.NoError(t, err)
	assert.Equal(t, flags, have[3:])
	for want, text := range map[string]string{
		`unknown field "tiergroup"`:            `{"queues":["a"],"schedule":"1s","tiergroup":"b"}`,
		"it drops or refuses dead letters":     `{"queues":["a"],"schedule":"1s","dead_letter_arguments":{"x-max-length":1}}`,
		"it must be \"quorum\" or \"classic\"": `{"queues":["a"],"schedule":"1s","queue_type":"stream"}`,
		"\"long\" is not a duration, such as ": `{"queues":["a"],"schedule":"1s","dead_letters":{"max_age":"long"}}`,
		`entry 2 of`:                           `[{"queues":["a"],"schedule":"1s"},{"queues":["b"]}]`,
		"there is more behind the end":         `{"queues":["a"],"schedule":"1s"} {}`,
		"must be a whole number":               `{"queues":["a"],"schedule":"1s","tier_arguments":{"x-max-length":1.5}}`,
		"has no entry":                         `[]`,
		"needed with different arguments":      `[{"queues":["a"],"schedule":"1s"},{"queues":["a"],"schedule":"1s","queue_arguments":{"x-max-priority":3}}]`,
		"unexpected EOF":                       `[{"queues":`,
		"want a delay from 1ms to 87600h":      `{"queues":["a"],"schedule":"soon"}`,
		"TierArguments[\"x-message-ttl\"]":     `{"queues":["a"],"schedule":"1s","tier_arguments":{"x-message-ttl":1}}`,
	} {
		_, err := parse(t, "--file", file(text))
		if assert.Error(t, err, text) {
			assert.Contains(t, err.Error(), want)
		}
	}
}

// TestFileHasAllFields: a new field of topology.Config needs one in the file. Its tiers follow from other fields.
func TestFileHasAllFields(t *testing.T) {
	fields := map[string]bool{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[declaration]()) {
		fields[field.Tag.Get("json")] = true
	}
	fields["tiers"] = fields["schedule"] && fields["jitter"] && fields["extra_tiers"]
	word := regexp.MustCompile(`[A-Z][a-z]+`)
	for _, field := range reflect.VisibleFields(reflect.TypeFor[topology.Config]()) {
		name := strings.ToLower(strings.Join(word.FindAllString(field.Name, -1), "_"))
		assert.True(t, fields[name], "the file has no field %s for %s", name, field.Name)
	}
}
