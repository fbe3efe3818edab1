package backends

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
)

// Memory is Watermill's gochannel. It keeps nothing over a restart, and drops a message whose topic has no
// subscription, dead letters included. It has no redelivery limit: App.Limit and App.HandlerLimit have no effect. Each
// subscription is a consumer group of its own.
func Memory(logger watermill.LoggerAdapter) Backend {
	channel := gochannel.NewGoChannel(gochannel.Config{}, logger)
	return relayed{pubSub: memory{channel, channel}, logger: logger}
}

// memory keeps the one gochannel open: closing it would end the publishers and subscribers of all others.
type memory struct {
	message.Publisher
	message.Subscriber
}

func (memory) Close() error { return nil }

func (m memory) publisher(App) (message.Publisher, error) { return m, nil }

func (m memory) subscriber(App, relay.SubscriberParams) (message.Subscriber, error) { return m, nil }

func (memory) reader(App) (relayletters.Reader, error) {
	return nil, fmt.Errorf("%w: gochannel keeps no message: subscribe to the dead-letter topic before the first letter",
		ErrNoLetters)
}
