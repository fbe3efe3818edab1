package secrets_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
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
		"ExtraTiers: tier 1: ", "MaxHold",
	}
	found := 0
	for name, empty := range configs {
		value := reflect.New(reflect.TypeOf(empty)).Elem()
		field := value.FieldByName("Policy")
		if _, is := value.Interface().(interface{ Validate() error }); !field.IsValid() || !is {
			continue
		}
		found++
		if field.Kind() == reflect.Pointer {
			field.Set(reflect.ValueOf(&wrong))
		} else {
			field.Set(reflect.ValueOf(wrong))
		}
		err := value.Interface().(interface{ Validate() error }).Validate()
		require.Error(t, err, name)
		lines := strings.Split(err.Error(), "\n")
		for _, path := range want {
			is := func(line string) bool { return strings.HasPrefix(line, "Policy."+path) }
			assert.True(t, slices.ContainsFunc(lines, is), "%s: no line begins with Policy.%s:\n%v", name, path, err)
		}
		relayed := strings.HasPrefix(name, "backends/") || name == "relay.Config"
		assert.Equal(t, relayed, strings.Contains(err.Error(), `Policy.TierGroup is "shop": only RabbitMQ has it`), name)
		for _, line := range lines {
			assert.Regexp(t, `^[A-Z][A-Za-z]*[ .:\[]`, line, "%s: a line without a field", name)
		}
	}
	assert.GreaterOrEqual(t, found, 7)
}
