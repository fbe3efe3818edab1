package kept

import (
	"errors"
	"testing"
	"time"

	amqp2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

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

// A process has the connections of apps, and one router, whose handlers get their own name.
type process struct {
	t           *testing.T
	uri         string
	router      *message.Router
	connections []retry.Connection
	handle      func(name string, msg *message.Message) error
}

// start starts apps until stop.
func (r *replay) start(apps ...func(*process)) (stop func()) {
	r.t.Helper()
	p := &process{t: r.t, uri: r.uri, router: message.NewDefaultRouter(nil), handle: r.handle}
	for _, app := range apps {
		app(p)
	}
	end, err := broker.Run(p.router)
	require.NoError(p.t, err)
	return func() {
		require.NoError(p.t, end())
		for _, c := range p.connections {
			require.NoError(p.t, c.Close())
		}
	}
}

// classic declares work queues that exist before their app.
func (r *replay) classic(names ...string) {
	for _, name := range names {
		_, err := r.channel.QueueDeclare(name, true, false, false, false, amqp091.Table{"x-queue-type": "classic"})
		require.NoError(r.t, err)
	}
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

// present are the apps that read the kept data.
func (p *process) present() {
	queues := configOf(p.uri)
	p.connect(queues, map[string]retry.Options{
		"orders": {}, "mails": {}, "scans": {}, "parts": {},
		"stock": own(queues, shop), "audit": own(queues, shop),
		"prices": own(queues, func(p *retry.Policy) { p.Schedule, p.Jitter = backoff.Schedule{2 * time.Second}, 0.2 }),
		"quotes": own(queues, func(p *retry.Policy) { p.MaxAge = time.Second }),
	})
	fanOut := configOf(p.uri)
	fanOut.AMQP = amqp2.NewDurablePubSubConfig(p.uri, nil)
	rabbit := p.connect(fanOut, nil)
	for _, group := range []string{"billing", "search"} {
		p.add(rabbit, "events "+group, "events", retry.Options{Group: group})
	}
	classicTiers := configOf(p.uri)
	classicTiers.QueueType = topology.Classic
	p.connect(classicTiers, map[string]retry.Options{"logs": {}})
	v3, err := configamqp3.Connect(configamqp3.Config{AMQP: amqp3.NewDurableQueueConfig(p.uri),
		Policy: retry.Policy{Schedule: schedule}}, nil)
	require.NoError(p.t, err)
	p.connections = append(p.connections, v3)
	p.add(v3, "returns", "returns", retry.Options{})
}

// gone are the apps whose work queues were deleted.
func (p *process) gone() {
	p.connect(configOf(p.uri), map[string]retry.Options{
		"gone": {}, "lost": own(configOf(p.uri), shop), "left": own(configOf(p.uri), shop),
	})
}

// connect connects an app with a handler for each topic.
func (p *process) connect(c config.Config, topics map[string]retry.Options) retry.Connection {
	connection, err := config.Connect(c, nil)
	require.NoError(p.t, err)
	p.connections = append(p.connections, connection)
	for topic, options := range topics {
		p.add(connection, topic, topic, options)
	}
	return connection
}

func (p *process) add(c retry.Connection, name, topic string, options retry.Options) {
	handle := func(msg *message.Message) error { return p.handle(name, msg) }
	c.AddConsumerHandler(p.router, name, topic, handle, options)
}
