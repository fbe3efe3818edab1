package publisher

import (
	"bytes"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := Open(Config{ConfirmTimeout: -time.Second, MaxInFlight: 65537}, nil)
	require.Error(t, err)
	for _, words := range []string{"URI: is empty", "ConfirmTimeout: -1s", "MaxInFlight: 65537, must be between 1 and 65536"} {
		assert.Contains(t, err.Error(), words)
	}
	require.ErrorContains(t, Config{MaxInFlight: -1}.Validate(), "MaxInFlight: -1")
}

func TestNoLogShowsThePassword(t *testing.T) {
	t.Parallel()
	const canary = "c4nary"
	b := serveConfirms(t)
	b.slow.Store(true)
	go func() {
		<-b.opens
		_ = b.conn.Close()
	}()
	var log bytes.Buffer
	uri := "amqp://user:" + canary + "@" + b.address + "/vhost"
	_, err := Open(Config{
		Wire: wire.Config{URI: uri},
	}, watermill.NewStdLoggerWithOut(&log, true, true))
	require.Error(t, err)
	assert.NotContains(t, err.Error()+log.String(), canary)
}
