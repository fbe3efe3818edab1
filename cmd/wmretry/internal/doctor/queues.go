package doctor

import (
	"maps"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// missing finds objects that are not there, and what has lost its way by that.
func missing(s *Snapshot, found sink) {
	for _, w := range s.works() {
		if w.Missing {
			found(w.Name, "no work queue")
		}
	}
	if orphans := s.Status.Orphans; orphans.Messages > 0 {
		found(orphans.Queue, "orphans", "{messages}", messages(orphans.Messages), "{redrive}",
			s.command("dead", "redrive", orphans.Queue))
	}
	for _, d := range s.Drift {
		if d.Kind == deadletter.Create {
			found(d.Object+" "+d.Name, "missing")
		}
	}
}

func tiers(s *Snapshot, found sink) {
	for _, w := range s.works() {
		for _, t := range w.Tiers {
			if t.Retired {
				found(t.Queue, "tier", "{messages}", messages(t.Messages), "{tier}", backoff.Tier(t.Delay).String(),
					"{prune}", s.command("tiers", "prune", "--dry-run"))
			}
		}
	}
}

// working are the states of a queue that answers, or will.
var working = []string{"", "running", "idle", "flow", "syncing", "recovering"}

func states(s *Snapshot, found sink) {
	for _, name := range s.own() {
		if state := s.Inventory.Queues[name].State; !slices.Contains(working, state) {
			found(name, "state", "{state}", state, "{queue}", shell.Word(name))
		}
	}
}

func overdue(s *Snapshot, found sink) {
	seen := map[string]bool{}
	add := func(queue string, due int, look string) {
		if !seen[queue] {
			seen[queue] = true
			found(queue, "overdue", "{messages}", messages(due), "{status}", look)
		}
	}
	for _, app := range s.Apps {
		if app.Health != nil {
			for _, t := range app.Health.Tiers {
				add(t.Queue, t.Overdue, s.command("status"))
			}
		}
	}
	for _, w := range s.works() {
		due := map[string]int{w.Inbox.Queue: s.Inventory.Queues[w.Inbox.Queue].Expired}
		for _, t := range w.Tiers {
			due[t.Queue] = t.Overdue
		}
		for _, queue := range slices.Sorted(maps.Keys(due)) {
			if due[queue] > management.ForwardedAtOnce {
				add(queue, due[queue], s.command("status", w.Name))
			}
		}
	}
}

func consumers(s *Snapshot, found sink) {
	for _, w := range s.works() {
		if !w.Missing && w.Consumers == 0 {
			away := s.away(w.Name)
			found(w.Name, "no consumer", "{messages}", messages(w.Messages), "{why}", away[0], "{do}", away[1])
		}
	}
}

// away returns why a work queue has no consumer, and what to do.
func (s *Snapshot) away(queue string) []string {
	entry, silent := "no app has it", ""
	for _, app := range s.Apps {
		if app.Health == nil {
			entry, silent = "an app is silent", app.URL
			continue
		}
		for _, sub := range app.Health.Subscriptions {
			if sub.Queue == queue {
				return idle(sub, app.URL)
			}
		}
	}
	if len(s.Apps) == 0 {
		entry = "no app is asked"
	}
	return sentences(entry, "{app}", silent)
}

// idle describes a handler that takes no messages, and what to do.
func idle(sub retry.SubscriptionHealth, address string) []string {
	if len(sub.Paused) == 0 {
		return sentences("does not consume", "{handler}", sub.Name, "{since}", utc(sub.Since), "{error}", sub.LastError)
	}
	entry := sub.Paused[len(sub.Paused)-1] // they are sorted, and a call of Pause is the last
	if entry != "paused" && entry != "holding" {
		entry = "failing"
	}
	return sentences(entry, "{handler}", sub.Name, "{paused}", strings.Join(sub.Paused, " and "), "{since}",
		utc(sub.PausedSince), "{app}", address)
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// health finds what is wrong with apps, besides what consumers has.
func health(s *Snapshot, found sink) {
	unconsumed := map[string]bool{}
	for _, w := range s.works() {
		unconsumed[w.Name] = w.Consumers == 0
	}
	for _, app := range s.Apps {
		if app.Health == nil {
			found(app.URL, "no health", "{error}", app.Error)
			continue
		}
		for _, link := range app.Health.Links {
			if !link.Connected {
				found(app.URL, "not connected", "{link}", link.Name, "{since}", utc(link.Since), "{error}", link.LastError)
			} else if link.Blocked {
				found(app.URL, "blocked connection", "{link}", link.Name)
			}
		}
		for _, sub := range app.Health.Subscriptions {
			if !unconsumed[sub.Queue] && (len(sub.Paused) > 0 || !sub.Consuming) {
				idle := idle(sub, app.URL)
				found(app.URL, "idle", "{why}", idle[0], "{do}", idle[1])
			}
			if blocked := len(sub.Blocked); blocked > 0 {
				of := " of handler " + sub.Name
				found(app.URL, "blocked keys", "{keys}", lettertext.Plural(blocked, "key"+of+" is", "keys"+of+" are"),
					"{command}", s.command("order", "status", sub.Queue))
			}
		}
	}
}

// unreadable finds apps whose connection was ended by a message that their client cannot read. The message itself is in
// no figure of the broker, and to look at it would end a connection again.
func unreadable(s *Snapshot, found sink) {
	for _, app := range s.Apps {
		if app.Health == nil {
			continue
		}
		for _, link := range app.Health.Links {
			if strings.Contains(link.LastError, amqp091.ErrSyntax.Reason) {
				found(app.URL, "unreadable", "{link}", link.Name, "{last}", utc(link.LastErrorAt))
			}
		}
	}
}

// waysIn find what an app can come from. docs/adopting.md has the steps.
var waysIn = []rule{{"delayed-exchange", delayedExchanges}, {"ttl-queue", ttlQueues}, {"poison-queue", poisonQueues}}

func delayedExchanges(s *Snapshot, found sink) {
	for _, name := range slices.Sorted(maps.Keys(s.Inventory.Exchanges)) {
		if s.Inventory.Exchanges[name].Type == "x-delayed-message" {
			found(name, "delayed exchange", "{queues}", strings.Join(s.boundTo(name, ""), ", "))
		}
	}
}

// ttlQueues finds queues of other programs that messages leave for a work queue: they have a TTL, or messages that no
// handler takes and that can have one.
func ttlQueues(s *Snapshot, found sink) {
	for _, name := range slices.Sorted(maps.Keys(s.Inventory.Queues)) {
		q := s.Inventory.Queues[name]
		what := "its messages wait for its TTL"
		if q.Setting("message-ttl") == nil {
			what = messages(q.Messages) + " without a consumer can have a TTL each"
		}
		home := s.home(q)
		if home == "" || q.Consumers > 0 || s.isOwn(q) || q.Messages == 0 && q.Setting("message-ttl") == nil {
			continue
		}
		found(name, "ttl queue", "{what}", what, "{home}", home, "{queue}", name)
	}
}

func poisonQueues(s *Snapshot, found sink) {
	for _, name := range slices.Sorted(maps.Keys(s.Inventory.Queues)) {
		q := s.Inventory.Queues[name]
		if strings.Contains(strings.ToLower(name), "poison") && q.Durable && !s.isOwn(q) {
			found(name, "poison queue", "{messages}", messages(q.Messages), "{list}",
				s.command("dead", "list", "--as-is", name), "{redrive}", s.command("dead", "redrive", "--as-is", name))
		}
	}
}

// isOwn reports whether a queue is the library's, with any prefix, or a work queue.
func (s *Snapshot) isOwn(q management.Queue) bool {
	to, _ := q.Setting("dead-letter-exchange").(string)
	return naming.WorkQueueOf(q.Name) != q.Name || strings.HasSuffix(to, naming.Prefix("").ReturnExchange()) ||
		q.Setting("dead-letter-routing-key") == naming.DeadKey(q.Name) || naming.IsPartition(q.Name) ||
		slices.Contains(s.own(), q.Name)
}

// home returns the queue to which messages of a queue go in the end, if handlers take them there.
func (s *Snapshot) home(q management.Queue) string {
	exchange, set := q.Setting("dead-letter-exchange").(string)
	key, _ := q.Setting("dead-letter-routing-key").(string)
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
