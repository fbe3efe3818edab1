package rabbitmq

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestHealthAsJSONHasTheTextsOfErrors(t *testing.T) {
	refused, deleted := errors.New("refused"), errors.New("queue deleted")
	for _, health := range []any{
		retry.Health{
			Links:         []retry.LinkHealth{{Name: "publishing", LastError: refused}, {}},
			Subscriptions: []retry.SubscriptionHealth{{Queue: "orders", LastError: deleted}},
			TiersError:    errors.New("no tag"),
		},
		publisher.Health{LastError: refused},
		subscriber.Health{LastError: refused, Subscriptions: []subscriber.SubscriptionHealth{{Queue: "orders", LastError: deleted}, {}}},
	} {
		text, err := json.Marshal(health)
		require.NoError(t, err)
		assert.Contains(t, string(text), `"LastError":"refused"`)
		assert.NotContains(t, string(text), `{}`)
		if _, isPublisher := health.(publisher.Health); !isPublisher {
			assert.Contains(t, string(text), `"Queue":"orders"`)
			assert.Contains(t, string(text), `"LastError":"queue deleted"`)
		}
	}
}
