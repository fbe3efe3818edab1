package pubsub

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/backends/natsretry"
)

// natsServer is package natsretry, at a URL such as nats://host:port.
type natsServer struct {
	module[natsretry.Config]
	url string
}

func natsRetry(url string, logger watermill.LoggerAdapter) Backend {
	config := func(app App) (natsretry.Config, func() error, error) {
		conn, err := nats.Connect(url, nats.MaxReconnects(-1), patient)
		if err != nil {
			return natsretry.Config{}, nil, fmt.Errorf("cannot connect to NATS: %w", err)
		}
		return natsretry.Config{
			Conn: conn, Group: app.Group, Policy: app.Policy, Prefix: app.Prefix, Lease: app.Lease,
		}, func() error { conn.Close(); return nil }, nil
	}
	return natsServer{module[natsretry.Config]{logger, config, natsretry.Connect, natsretry.Letters}, url}
}

// patient waits for a busy server: the client's own two seconds are too short beside other tests.
var patient = nats.Timeout(time.Minute)

// Publisher implements Backend.
func (n natsServer) Publisher() (message.Publisher, error) {
	return wmnats.NewPublisher(wmnats.PublisherConfig{URL: n.url, NatsOptions: []nats.Option{patient}}, n.logger)
}

// Left implements Backend. It counts the messages of the retries' stream, without the dead letters.
func (n natsServer) Left(ctx context.Context, app App, _ []string) (int, error) {
	conn, err := nats.Connect(n.url, patient)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return 0, err
	}
	name, err := js.StreamNameBySubject(ctx, app.Prefix+".return.x")
	if err != nil {
		return 0, err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return 0, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return 0, err
	}
	left := 0
	for subject, messages := range info.State.Subjects {
		if !strings.HasPrefix(subject, app.Prefix+".dead.") {
			left += int(messages)
		}
	}
	return left, nil
}
