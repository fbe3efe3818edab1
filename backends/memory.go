package backends

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/relay"
)

// Memory is Watermill's gochannel. It keeps nothing over a restart, and drops a message whose topic has no
// subscription, dead letters included. It has no redelivery limit: App.Limit and App.HandlerLimit have no effect. Each
// subscription is a consumer group of its own.
func Memory(logger watermill.LoggerAdapter) Backend {
	channel := gochannel.NewGoChannel(gochannel.Config{}, logger)
	publisher := func() (message.Publisher, error) { return shared{Publisher: channel}, nil }
	retries := parts{
		publisher: publisher,
		subscriber: func(App, string) (message.Subscriber, error) {
			return shared{Subscriber: channel}, nil
		},
		tier: func(relay.SubscriberParams, time.Duration) (message.Subscriber, error) {
			return shared{Subscriber: channel}, nil
		},
		noLetters: "gochannel keeps no message: subscribe to the dead-letter topic before the first letter",
	}
	return Backend{
		Name: "gochannel", Publisher: publisher, Letters: retries.letters,
		Connect: func(app App) (*Connection, error) { return retries.connect(app, logger) },
	}
}

// shared keeps the one gochannel open: closing it would end the publishers and subscribers of all others.
type shared struct {
	message.Publisher
	message.Subscriber
}

func (shared) Close() error { return nil }
