package kept

import (
	"errors"
	"fmt"
	"time"

	amqp2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	configamqp3 "github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// What the rules of the apps match.
var (
	errDown    = errors.New("the bank is down")
	errBusy    = errors.New("the bank is busy")
	errAccount = errors.New("account 17 is closed")
	errRestart = errors.New("the bank restarts")
)

// schedule is that of most handlers: two tiers that come back while a test waits, and one that does not.
var schedule = backoff.Schedule{2 * time.Second, 3 * time.Second, time.Hour}

// apps are processes that use one virtual host.
type apps string

const (
	present apps = "present" // those that read the kept data
	gone    apps = "gone"    // those whose work queues were deleted
)

// A handler gets the messages of all handlers of an app.
type handler func(name string, msg *message.Message) error

// A process has the connections of apps, and one router.
type process struct {
	router      *message.Router
	connections []retry.Connection
	handle      handler
}

// start starts apps. Call stop once.
func start(uri string, apps apps, handle handler) (stop func() error, err error) {
	p := process{router: message.NewDefaultRouter(nil), handle: handle}
	switch apps {
	case present:
		err = errors.Join(classic(uri, "mails", "audit"), p.present(uri))
	case gone:
		err = errors.Join(classic(uri, "left"), p.gone(uri))
	}
	var end func() error
	if err == nil {
		end, err = broker.Run(p.router)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return func() error { return errors.Join(end(), p.close()) }, nil
}

func (p *process) close() (err error) {
	for _, c := range p.connections {
		err = errors.Join(err, c.Close())
	}
	return err
}

// classic declares work queues that exist before their app.
func classic(uri string, names ...string) error {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	for _, name := range names {
		if err == nil {
			_, err = channel.QueueDeclare(name, true, false, false, false, amqp091.Table{"x-queue-type": "classic"})
		}
	}
	return err
}

func configOf(uri string) config.Config {
	return config.Config{
		AMQP: amqp2.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: schedule,
			ExtraTiers: []time.Duration{10 * time.Minute}, Rules: []retry.Rule{
				{If: retry.Is(errBusy), Then: retry.Snooze(3 * time.Second)},
				{If: retry.Is(errAccount), Then: retry.DeadLetter("no_account")},
				{If: retry.Is(errRestart), Then: retry.GiveBack()},
			}},
	}
}

// own returns options with a changed copy of the connection's policy.
func own(c config.Config, change func(*retry.Policy)) retry.Options {
	policy := c.Policy
	change(&policy)
	return retry.Options{Policy: &policy}
}

// shop makes a work queue share the tiers of a group.
func shop(p *retry.Policy) { p.TierGroup = "shop" }

func (p *process) present(uri string) error {
	queues := configOf(uri)
	err := p.connect(queues, map[string]retry.Options{
		"orders": {}, "mails": {}, "scans": {}, "parts": {},
		"stock": own(queues, shop), "audit": own(queues, shop),
		"prices": own(queues, func(p *retry.Policy) { p.Schedule, p.Jitter = backoff.Schedule{2 * time.Second}, 0.2 }),
		"quotes": own(queues, func(p *retry.Policy) { p.MaxAge = time.Second }),
	})
	if err != nil {
		return err
	}
	fanOut := configOf(uri)
	fanOut.AMQP = amqp2.NewDurablePubSubConfig(uri, nil)
	groups := map[string]retry.Options{"events": {Group: "billing"}, "events ": {Group: "search"}}
	if err := p.connect(fanOut, groups); err != nil {
		return err
	}
	classicTiers := configOf(uri)
	classicTiers.QueueType = topology.Classic
	if err := p.connect(classicTiers, map[string]retry.Options{"logs": {}}); err != nil {
		return err
	}
	newer := configamqp3.Config{AMQP: amqp3.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: schedule}}
	v3, err := configamqp3.Connect(newer, nil)
	if err != nil {
		return err
	}
	p.add(v3, "returns", retry.Options{})
	return nil
}

func (p *process) gone(uri string) error {
	return p.connect(configOf(uri), map[string]retry.Options{
		"gone": {}, "lost": own(configOf(uri), shop), "left": own(configOf(uri), shop),
	})
}

// connect connects an app with a handler for each topic.
func (p *process) connect(c config.Config, topics map[string]retry.Options) error {
	connection, err := config.Connect(c, nil)
	if err != nil {
		return err
	}
	for topic, options := range topics {
		p.add(connection, topic, options)
	}
	return nil
}

func (p *process) add(c retry.Connection, topic string, options retry.Options) {
	if len(p.connections) == 0 || p.connections[len(p.connections)-1] != c {
		p.connections = append(p.connections, c)
	}
	name := topic
	if options.Group != "" {
		topic = "events"
		name = fmt.Sprint(topic, " ", options.Group)
	}
	handle := func(msg *message.Message) error { return p.handle(name, msg) }
	c.AddConsumerHandler(p.router, name, topic, handle, options)
}
