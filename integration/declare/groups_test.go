package declare_test

import (
	"slices"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// inGroup makes the work queues of an app share their tiers.
func inGroup(b *config.Config) {
	b.Policy.TierGroup, b.Policy.ExtraTiers = b.Prefix+"_group", b.Policy.Schedule
}

// classic makes each work queue a classic queue, which has an inbox.
func classic(b *config.Config) {
	b.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "classic"}
}

func (a *app) inbox(queue string) string { return queue + "." + a.Name + ".inbox" }
func (a *app) groupExchange() string     { return a.Name + "_group." + a.Name }
func (a *app) groupReturn() string       { return a.groupExchange() + ".return" }

// boundTo are the queues that are bound to an exchange.
func (a *app) boundTo(exchange string) (queues []string) {
	a.t.Helper()
	client := broker.Management(a.t)
	broker.Eventually(a.t, soon, func() bool {
		bindings, err := client.ListExchangeBindingsWithSource("/", exchange)
		queues = nil
		for _, b := range bindings {
			queues = append(queues, b.Destination)
		}
		return err == nil
	}, "the management API answers")
	slices.Sort(queues)
	return queues
}

// A tier of a group that an operator deletes, with what waits on it, is declared again by the next copies.
func TestATierOfAGroupIsDeleted(t *testing.T) {
	t.Parallel()
	a := connect(t, inGroup, classic)
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	a.handle(queue, 3, processed)
	a.Run()
	send(t, queue, 0)
	a.onceEach(queue, processed, batch)
	testapp.Delete(t, a.groupExchange()+".100ms")
	send(t, queue, batch)
	a.onceEach(queue, processed, 2*batch)
	assert.Equal(t, []string{a.groupExchange() + ".100ms", a.groupExchange() + ".1s", a.groupExchange() + ".300ms"},
		a.boundTo(a.groupExchange()))
}

// A work queue that is replaced by one of another type gets an inbox when it needs one, and keeps it. No message comes
// twice.
func TestAWorkQueueOfAGroupChangesItsType(t *testing.T) {
	t.Parallel()
	a := connect(t, slowly, inGroup)
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	a.handle(queue, 3, processed)
	a.Run()
	for i, kind := range []string{"quorum", "classic", "quorum"} {
		bound := []string{queue}
		if i > 0 {
			a.replace(queue, amqp091.Table{"x-queue-type": kind, "x-dead-letter-exchange": "amq.fanout"})
			bound = append(bound, a.inbox(queue))
		}
		broker.Eventually(t, soon, func() bool {
			return a.Health().Ready() == nil && slices.Equal(a.boundTo(a.groupReturn()), bound)
		}, "%v are bound", bound)
		send(t, queue, i*batch)
		a.onceEach(queue, processed, (i+1)*batch)
	}
}
