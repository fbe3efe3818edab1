package secrets_test

import (
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestEachFaultHasItsPath: on the Config of every backend, the faults of its policy have their whole path in each line.
func TestEachFaultHasItsPath(t *testing.T) {
	t.Parallel()
	wrong := retry.Policy{
		Schedule: backoff.Schedule{0, -1}, Rules: []retry.Rule{{Name: "a"}, {Name: "b"}}, Breaker: &retry.Breaker{Ratio: 2, Least: -1},
		ExtraTiers: []time.Duration{0}, MaxHold: -1, TierGroup: "shop",
	}
	want := []string{
		"Schedule: backoff: retry 1", "Schedule: backoff: retry 2", "Rules[0].If", "Rules[0].Then", "Rules[1].If", "Rules[1].Then", "Breaker.Ratio", "Breaker.Least",
		"ExtraTiers: backoff", "MaxHold",
	}
	for name, err := range map[string]error{
		"backends/kafkaretry.Config":    faultsOf(kafkaretry.Connect, kafkaretry.Config{Policy: wrong}),
		"backends/natsretry.Config":     faultsOf(natsretry.Connect, natsretry.Config{Policy: wrong}),
		"backends/postgresretry.Config": faultsOf(postgresretry.Connect, postgresretry.Config{Policy: wrong}),
		"backends/redisretry.Config":    faultsOf(redisretry.Connect, redisretry.Config{Policy: wrong}),
		"config.Config":                 config.Config{Policy: wrong}.Validate(),
		"config/amqp3.Config":           amqp3.Config{Policy: wrong}.Validate(),
		"relay.Config":                  faultsOf(relay.Connect, relay.Config{Policy: wrong}),
	} {
		require.Error(t, err, name)
		var lines []string
		for line := range strings.Lines(err.Error()) {
			lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "invalid "+path.Base(name)+": "))
		}
		for _, field := range want {
			is := func(line string) bool { return strings.HasPrefix(line, "Policy."+field) }
			assert.True(t, slices.ContainsFunc(lines, is), "%s: no line begins with Policy.%s:\n%v", name, field, err)
		}
		relayed := strings.HasPrefix(name, "backends/") || name == "relay.Config"
		assert.Equal(t, relayed, strings.Contains(err.Error(), `Policy.TierGroup is "shop": only RabbitMQ has it`), name)
		for _, line := range lines {
			assert.Regexp(t, `^[A-Z][A-Za-z]*[ .:\[]`, line, "%s: a line without a field", name)
		}
	}
}

func faultsOf[C any](connect func(C, watermill.LoggerAdapter) (retry.Connection, error), config C) error {
	_, err := connect(config, nil)
	return err
}
