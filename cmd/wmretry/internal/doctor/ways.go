package doctor

import (
	"maps"
	"slices"
	"strings"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/shell"
)

// waysIn find what an app can come from. docs/adopting.md has the steps.
var waysIn = []rule{
	{"delayed-exchange", delayedExchanges}, {"ttl-queue", ttlQueues}, {"poison-queue", poisonQueues},
}

func delayedExchanges(s *Snapshot, found sink) {
	for _, name := range slices.Sorted(maps.Keys(s.Inventory.Exchanges)) {
		if s.Inventory.Exchanges[name].Type == "x-delayed-message" {
			to := strings.Join(s.boundTo(name, ""), ", ")
			found(name, "an exchange of the delayed-message plugin, to: "+to,
				"docs/adopting.md#from-the-delayed-message-exchange",
				"deploy Connect to every instance of the app on "+to+". The exchange stays bound",
				"then publishers send to "+to+", with the header _watermill_delayed_for in place of x-delay")
		}
	}
}

// ttlQueues finds queues of other programs that messages leave for a work queue: they have a TTL, or messages that no
// handler takes and that can have one.
func ttlQueues(s *Snapshot, found sink) {
	for _, name := range slices.Sorted(maps.Keys(s.Inventory.Queues)) {
		q := s.Inventory.Queues[name]
		what := "its messages wait for its TTL"
		if setting(q, "message-ttl") == nil {
			what = messages(q.Messages) + " without a consumer can have a TTL each"
		}
		home := s.home(q)
		if home == "" || q.Consumers > 0 || s.isOwn(q) || q.Messages == 0 && setting(q, "message-ttl") == nil {
			continue
		}
		found(name, what+", and go to "+home, "docs/adopting.md#from-queues-with-a-ttl",
			"deploy Connect to every instance of the app on "+home+", one after the other",
			"then wait until this shows 0 messages of "+name+" for ten seconds",
			"rabbitmqctl list_queues -p "+shell.Word(s.Vhost)+" name messages")
	}
}

func poisonQueues(s *Snapshot, found sink) {
	for _, name := range slices.Sorted(maps.Keys(s.Inventory.Queues)) {
		q := s.Inventory.Queues[name]
		if strings.Contains(strings.ToLower(name), "poison") && q.Durable && !s.isOwn(q) {
			found(name, "by its name a poison queue, with "+messages(q.Messages),
				"docs/adopting.md#from-watermills-retry-and-poisonqueue; after step 2 there:",
				s.command("dead", "list", "--as-is", name), s.command("dead", "redrive", "--as-is", name))
		}
	}
}

// isOwn reports whether a queue is the library's, with any prefix, or a work queue.
func (s *Snapshot) isOwn(q management.Queue) bool {
	to, _ := setting(q, "dead-letter-exchange").(string)
	return naming.WorkQueueOf(q.Name) != q.Name || strings.HasSuffix(to, naming.Prefix("").ReturnExchange()) ||
		setting(q, "dead-letter-routing-key") == naming.DeadKey(q.Name) || naming.IsPartition(q.Name) ||
		slices.Contains(s.own(), q.Name)
}

// home returns the queue to which messages of a queue go in the end, if handlers take them there.
func (s *Snapshot) home(q management.Queue) string {
	exchange, set := setting(q, "dead-letter-exchange").(string)
	key, _ := setting(q, "dead-letter-routing-key").(string)
	to := []string{key}
	if exchange != "" {
		to = s.boundTo(exchange, key)
	}
	for _, name := range to {
		if set && name != q.Name && (s.Inventory.Queues[name].Consumers > 0 || slices.Contains(s.own(), name)) {
			return name
		}
	}
	return ""
}

// boundTo returns the queues that are bound to an exchange, sorted. With a key, those of a direct exchange have it.
func (s *Snapshot) boundTo(exchange, key string) (queues []string) {
	exact := s.Inventory.Exchanges[exchange].Type == "direct" && key != ""
	for b := range s.Inventory.Bindings {
		if b.Exchange == exchange && (!exact || b.Key == key) {
			queues = append(queues, b.Queue)
		}
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}
