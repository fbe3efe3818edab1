package door

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

func TestHealthAsJSONHasTheTextsOfErrors(t *testing.T) {
	refused, deleted := errors.New("refused"), errors.New("queue deleted")
	text, err := json.Marshal(retry.Health{
		Links:         []retry.LinkHealth{{Name: "publishing", LastError: refused}, {}},
		Subscriptions: []retry.SubscriptionHealth{{Queue: "orders", LastError: deleted}},
		TiersError:    errors.New("no tag"),
	})
	require.NoError(t, err)
	assert.Contains(t, string(text), `"LastError":"refused"`)
	assert.NotContains(t, string(text), `{}`)
	assert.Contains(t, string(text), `"Queue":"orders"`)
	assert.Contains(t, string(text), `"LastError":"queue deleted"`)
}
