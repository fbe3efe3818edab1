package model

import "time"

// A rule is what some versions of RabbitMQ do, and others do not.
type rule int

const (
	limitOf20 rule = iota
	limitMinusOneDrops
	limitAddsPlace
	nackCounts
	countAtGet
	acquiredCount
	highFirst
	timeoutCancels
	lastDeath
	keepsCC
	countsProperties
	smallMessages
)

const yes, no = true, false

// in is which of 3.10, 4.0 and 4.3 follow a rule.
type in [3]bool

// table has all rules. Package proof holds it against these brokers.
var table = [...]struct {
	in
	what string
}{
	limitOf20:          {in{no, yes, yes}, "a quorum queue without a delivery limit has that of 20"},
	limitMinusOneDrops: {in{yes, no, no}, "a delivery limit of -1 drops a message at its first requeue"},
	limitAddsPlace:     {in{yes, no, no}, "a message over its limit leaves its consumer one place more than its prefetch"},
	nackCounts:         {in{yes, yes, no}, "basic.nack with requeue counts towards the delivery limit"},
	countAtGet:         {in{yes, no, no}, "basic.get of a quorum queue has x-delivery-count 0"},
	acquiredCount:      {in{no, no, yes}, "redeliveries of a quorum queue have x-acquired-count"},
	highFirst:          {in{no, yes, yes}, "a quorum queue delivers priorities above 4 first"},
	timeoutCancels:     {in{no, no, yes}, "a consumer timeout on a quorum queue cancels the consumer, not its channel"},
	lastDeath:          {in{no, yes, yes}, "dead letters have x-last-death-*"},
	keepsCC:            {in{no, yes, yes}, "a dead letter with a key of its own keeps a CC without effect"},
	countsProperties:   {in{no, no, yes}, "in x-max-length-bytes of a quorum queue the properties count, too"},
	smallMessages:      {in{no, yes, yes}, "a message has at most 16 MiB, not 128"},
}

// LeftOut is what the model does not do as a broker does. The scripts of package proof avoid it.
var LeftOut = []string{
	"clusters, virtual hosts, users, permissions, TLS, streams, transactions, AMQP 1.0, direct reply-to",
	"x-expires, native delayed retry, delayed messages of 4.4",
	"x-consumer-timeout of a queue or a consumer: each has the time-out of the node",
	"priorities of policies (the first name in the alphabet wins), operator policies, policies of exchanges",
	"flow control, limits of connections and channels, another max_message_size, the size of frames that a client wants",
	"the management API, but for what this library reads of it: there the figures are those of now",
	"the loss of transient messages at a restart: a durable queue keeps them",
	"an x-death that a client sends: the model believes it on each version, brokers from 4.0 on do not",
	"what a dead letter of 4.x still says of its deliveries before its death: redelivered, x-delivery-count",
	"priorities in quorum queues, but for the rule above; priorities in a queue whose messages expire",
	"the order in which several channels of a connection that ends give back messages: all consumers end first",
	"the order of dead letters of several queues in one queue, and of two queues that dead-letter to each other when full",
	"the few messages that a publisher gets into a full quorum queue before it is told, and policies of overflow there",
}

// Rules are those of a version.
type Rules struct {
	Version string
	column  int
}

// Versions are the versions that have rules, from the oldest on.
var Versions = []Rules{{"3.10.8", 0}, {"4.0.5", 1}, {"4.3.6", 2}}

// largestMessage is max_message_size, as it is by default: of the body, in bytes.
func (b *Broker) largestMessage() int {
	if b.does(smallMessages) {
		return 16 << 20
	}
	return 128 << 20
}

func (b *Broker) does(r rule) bool { return table[r].in[b.config.Rules.column] }

const (
	// deliveryLimit is that of a quorum queue that has none.
	deliveryLimit = 20
	// forwardedAtOnce is how many messages a quorum queue dead-letters at-least-once at the same time.
	forwardedAtOnce = 32
	// forwardAgain is how long such a message waits that a queue did not take, or that has no queue.
	forwardAgain = 3 * time.Minute

	heartbeat              = 60 // seconds, as the broker proposes it
	defaultConsumerTimeout = 30 * time.Minute
)
