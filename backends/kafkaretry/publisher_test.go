package kafkaretry

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/unpublished"
)

// versions are those of the requests of a broker: newer clients send none that it does not name.
func versions(t *testing.T) *sarama.MockApiVersionsResponse {
	var keys []sarama.ApiVersionsResponseKey
	for key := range int16(50) {
		keys = append(keys, sarama.ApiVersionsResponseKey{ApiKey: key, MaxVersion: 20})
	}
	return sarama.NewMockApiVersionsResponse(t).SetApiKeys(keys)
}

// startBroker starts a broker that has the topic of a tier. Without produced it does not answer what is published.
func startBroker(t *testing.T, produced sarama.MockResponse) Config {
	t.Helper()
	broker := sarama.NewMockBroker(t, 1)
	t.Cleanup(broker.Close)
	answers := map[string]sarama.MockResponse{
		"ApiVersionsRequest": versions(t),
		"MetadataRequest": sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), 1).SetController(1).
			SetLeader("retry.1s", 0, 1),
	}
	if produced != nil {
		answers["ProduceRequest"] = produced
	}
	broker.SetHandlerByMap(answers)
	config := valid()
	config.Brokers = []string{broker.Addr()}
	return config
}

func openCopies(t *testing.T, config Config) *copies {
	t.Helper()
	c := newCluster(config, watermill.NopLogger{})
	stock, err := c.newProducer(config.copies)
	require.NoError(t, err)
	return &copies{cluster: c, stock: stock}
}

// A copy that does not fit is no message that a further try can publish.
func TestCopiesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	refuses := sarama.NewMockProduceResponse(t).SetError("retry.1s", 0, sarama.ErrMessageSizeTooLarge)
	large := make([]byte, 2<<20) // more than the client takes by default
	for name, row := range map[string]struct {
		broker sarama.MockResponse
		body   []byte
		want   unpublished.Kind
	}{
		"for the broker":          {refuses, nil, unpublished.TooLarge},
		"for the app's client":    {sarama.NewMockProduceResponse(t), large, -1},
		"for client and broker":   {refuses, large, unpublished.TooLarge},
		"together with others":    {sarama.NewMockSequence(refuses, sarama.NewMockProduceResponse(t)), nil, -1},
		"for every request":       {sarama.NewMockProduceResponse(t), make([]byte, largestCopy), unpublished.TooLarge},
		"for a broker that fails": {sarama.NewMockProduceResponse(t).SetError("retry.1s", 0, sarama.ErrUnknown), nil, unpublished.Temporary},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := openCopies(t, startBroker(t, row.broker))
			err := p.Publish("retry.1s", message.NewMessage("1", row.body))
			if row.want < 0 {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				assert.Equal(t, row.want, unpublished.KindOf(err))
			}
			require.NoError(t, p.Close())
			assert.Equal(t, unpublished.Closed, unpublished.KindOf(p.Publish("retry.1s", message.NewMessage("1", nil))))
		})
	}
}

// A copy whose confirm does not come may have arrived. Its publisher waits until the end of the message's context, and
// not as long as a request, and neither does Close.
func TestCopiesThatAreNotConfirmed(t *testing.T) {
	t.Parallel()
	config := startBroker(t, nil)
	config.Sarama = sarama.NewConfig()
	config.Sarama.Version, config.Sarama.Producer.Retry.Max = sarama.V2_2_0_0, 0
	p, patient := openCopies(t, config), openCopies(t, config)
	request := make(chan struct{})
	go func() {
		defer close(request)
		_ = patient.stock.Publish("retry.1s", message.NewMessage("1", nil))
	}()
	ended := make(chan [2]error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := p.Publish("retry.1s", message.NewMessageWithContext(ctx, "1", nil))
		ended <- [2]error{err, p.Close()}
	}()
	select {
	case errs := <-ended:
		assert.Equal(t, unpublished.Unconfirmed, unpublished.KindOf(errs[0]))
		require.ErrorIs(t, errs[0], context.DeadlineExceeded)
		require.ErrorIs(t, errs[1], errSilent)
	case <-request:
		require.Fail(t, "Publish and Close take as long as a request")
	}
	patient.cluster.network.cut()
	<-request
}
