package kafkaretry

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A cluster that does not show the settings of a topic is asked once, and that is a warning.
func TestSettingsThatAreNotShown(t *testing.T) {
	t.Parallel()
	broker := sarama.NewMockBroker(t, 1)
	defer broker.Close()
	broker.SetHandlerByMap(map[string]sarama.MockResponse{
		"ApiVersionsRequest":     versions(t),
		"MetadataRequest":        sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), 1).SetController(1),
		"DescribeConfigsRequest": sarama.NewMockDescribeConfigsResponseWithErrorCode(t),
	})
	config, logs := valid(), watermill.NewCaptureLogger()
	config.Brokers = []string{broker.Addr()}
	c := newCluster(config, logs)
	defer c.close()
	c.sizes.add("billing", "orders")
	for range 3 {
		largest, err := c.measure(t.Context(), "orders")
		require.NoError(t, err)
		assert.Zero(t, largest)
	}
	assert.Len(t, logs.Captured()[watermill.ErrorLogLevel], 1)
}

// A tier is compared with all topics of the process, also with those that become known after it is subscribed.
func TestTiersThatAreTooSmall(t *testing.T) {
	t.Parallel()
	c := newCluster(valid(), nil)
	c.sizes.add("billing", "orders")
	c.sizes.know("orders", 1000)
	require.NoError(t, c.checkTier("retry.1s", map[string]string{maxMessageBytes: "2000"}))
	require.NoError(t, c.checkTier("retry.1h", map[string]string{}), "it is not shown")
	require.NoError(t, c.checkTiers())
	c.sizes.add("billing", "invoices")
	c.sizes.know("invoices", 3000)
	require.ErrorContains(t, c.checkTiers(), `topic "retry.1s": its max.message.bytes is 2000, and that of topic "invoices" is 3000`)
	require.ErrorContains(t, c.checkTiers(), "max.message.bytes=68536")
}
