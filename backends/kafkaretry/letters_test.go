package kafkaretry

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadingGoesOnBehindWhatIsDeletedMeanwhile: what is settled can be deleted after the offsets were read.
func TestReadingGoesOnBehindWhatIsDeletedMeanwhile(t *testing.T) {
	broker := sarama.NewMockBroker(t, 1)
	defer broker.Close()
	broker.SetHandlerByMap(map[string]sarama.MockResponse{
		"ApiVersionsRequest": versions(t),
		"MetadataRequest":    sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), 1).SetLeader("retry.1s", 0, 1),
		"OffsetRequest": sarama.NewMockOffsetResponse(t).
			SetOffset("retry.1s", 0, sarama.OffsetOldest, 5).SetOffset("retry.1s", 0, sarama.OffsetNewest, 7),
		"FetchRequest": sarama.NewMockFetchResponse(t, 2).SetHighWaterMark("retry.1s", 0, 7).
			SetMessage("retry.1s", 0, 5, sarama.StringEncoder("a")).SetMessage("retry.1s", 0, 6, sarama.StringEncoder("b")),
	})
	client, err := sarama.NewClient([]string{broker.Addr()}, sarama.NewConfig())
	require.NoError(t, err)
	defer func() { assert.NoError(t, client.Close()) }()
	found, err := reader{client: client}.Read(t.Context(), "retry.1s", "0", "7", 10)
	require.NoError(t, err)
	require.Len(t, found, 2)
	assert.Equal(t, "a", string(found[0].Message.Payload))
	assert.Equal(t, "7", found[1].Position)
}
