package deadletter_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestImportBoundsBytesInFlight: while the broker does not answer, an import has about 32 MiB of bodies in flight, and
// not 128 letters of any size.
// The race detector makes it slow, so that it runs beside no other test of the package: the first line has 30 seconds.
func TestImportBoundsBytesInFlight(t *testing.T) {
	const most = 25 // of 1 MiB
	total, enough := importInSilence(t, most)
	for tries := 1; !enough && tries < 5; tries++ { // the broker has ended the connection before: this machine is slow
		total, enough = importInSilence(t, most)
	}
	assert.Equal(t, most+1, total, "one more waits for its place")
}

// importInSilence imports lines of 1 MiB over a network that brings nothing to the broker. It returns how many were
// read, and whether there were enough before the connection ended.
func importInSilence(t *testing.T, most int) (total int, enough bool) {
	t.Helper()
	const lines, body = 100, 1 << 20
	proxy, uri := broker.Proxy(t)
	text := fmt.Sprintf(`{"queue":"q.dead","exchange":"","routing_key":"q.dead","properties":{},"headers":{},"body":%q}`+"\n",
		base64.StdEncoding.EncodeToString(make([]byte, body)))
	var all []io.Reader
	for i := range lines {
		all = append(all, before(func() {
			switch i {
			case 0: // the import is connected
				_, err := proxy.Toxics.AddToxicJson(strings.NewReader(
					`{"name":"silence","type":"timeout","stream":"upstream","attributes":{"timeout":0}}`))
				assert.NoError(t, err)
			case most:
				enough = true // without a bound, the import reads the other lines meanwhile
				time.AfterFunc(time.Second, proxy.Stop)
			}
		}), strings.NewReader(text))
	}
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	require.NoError(t, err)
	defer store.Close()
	summary, err := store.Import(t.Context(), io.MultiReader(all...), letters.Redrive{})
	require.Error(t, err)
	return summary.Total, enough
}

// before is an empty reader that calls a function.
type before func()

func (f before) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}
