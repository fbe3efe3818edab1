package subscriber

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

func TestDefaults(t *testing.T) {
	t.Parallel()
	var c Config
	c.setDefaults()
	assert.Equal(t, []int{16, 16}, []int{c.Concurrency, c.Prefetch})
	assert.Equal(t, []time.Duration{30 * time.Second, 5 * time.Second}, []time.Duration{c.CloseTimeout, c.LongestNack})
}

func TestOpenDoesNotTellThePassword(t *testing.T) {
	t.Parallel()
	const canary = "c4nary-s3cret"
	_, err := Open(wire.Config{URI: "amqp://user:12/" + canary + "@localhost/"}, nil)
	require.Error(t, err)
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), canary)
}
