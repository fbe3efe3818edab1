package natsretry

import (
	"bufio"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lateDialer refuses the first connection. The next one is to a server that is there when up is closed.
type lateDialer struct {
	up    chan struct{}
	dials int
}

func (d *lateDialer) Dial(string, string) (net.Conn, error) {
	if d.dials++; d.dials == 1 {
		return nil, errors.New("refused")
	}
	<-d.up
	client, server := net.Pipe()
	go func() {
		_, _ = server.Write([]byte("INFO {\"headers\":true}\r\n"))
		for in := bufio.NewScanner(server); in.Scan(); {
			if strings.HasPrefix(in.Text(), "PING") {
				go func() { _, _ = server.Write([]byte("PONG\r\n")) }() // the client may write before it reads
			}
		}
	}()
	return client, nil
}

// asked tells that a context is being made of it.
type asked struct {
	context.Context
	tell func()
}

func (a asked) Done() <-chan struct{} {
	a.tell()
	return a.Context.Done()
}

// deadlines stores what is published, and returns until when it could have answered.
type deadlines struct {
	jetstream.JetStream
	until chan time.Time
}

func (d deadlines) PublishMsg(
	ctx context.Context, _ *nats.Msg, _ ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	until, _ := ctx.Deadline()
	d.until <- until
	return &jetstream.PubAck{}, nil
}

// A connection that comes late takes nothing from the time that the server has for its answer.
func TestTimeForAnAnswerBeginsWithTheConnection(t *testing.T) {
	t.Parallel()
	dialer := &lateDialer{up: make(chan struct{})}
	conn, err := nats.Connect("nats://127.0.0.1", nats.SetCustomDialer(dialer), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js := deadlines{until: make(chan time.Time, 1)}
	p := copyPublisher{server: &server{Config: Config{Conn: conn, Prefix: "retry"}, js: js}, links: newLinks(conn)}
	t.Cleanup(func() { _ = p.Close() })
	var connected time.Time
	msg := message.NewMessage("1", nil)
	msg.SetContext(asked{t.Context(), sync.OnceFunc(func() {
		connected = time.Now()
		close(dialer.up)
	})})
	require.NoError(t, p.Publish("retry.dead", msg))
	assert.False(t, (<-js.until).Before(connected.Add(publishTimeout)))
}
