package broker

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAFailureOfTheManagementAPIIsAskedAgain(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < 3 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(`[{"name":"orders"}]`))
	}))
	defer server.Close()
	client, err := Client("amqp://guest:guest@localhost/", server.URL)
	require.NoError(t, err)
	queues, err := client.ListQueues()
	require.NoError(t, err)
	assert.Len(t, queues, 1)
}
