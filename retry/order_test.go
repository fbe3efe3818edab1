package retry_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

func TestAnOrderIsValidated(t *testing.T) {
	t.Parallel()
	key := func(*message.Message) string { return "" }
	for _, valid := range []retry.Order{
		{}, {Key: key}, {Key: key, Partitions: 256, Block: true, ConsumerTimeout: time.Second},
	} {
		assert.NoError(t, retry.Options{Order: valid}.Validate())
	}
	err := retry.Options{Order: retry.Order{Block: true, ConsumerTimeout: time.Millisecond}}.Validate()
	for _, fault := range []string{
		"Order.Key is nil", "Order.Block is true, but Order.Partitions is 0",
		"Order.ConsumerTimeout is 1ms, but Order.Partitions is 0",
	} {
		require.ErrorContains(t, err, fault)
	}
	err = retry.Options{Order: retry.Order{Key: key, Partitions: 257, ConsumerTimeout: time.Millisecond}}.Validate()
	require.ErrorContains(t, err, "Order.Partitions is 257: it must be between 0 (one process) and 256")
	require.ErrorContains(t, err, "Order.ConsumerTimeout is 1ms: it must be at least 1s")
}
