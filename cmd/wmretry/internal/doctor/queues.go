package doctor

import (
	"fmt"
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
			found(w.Name, "the work queue does not exist, and what waits for it becomes an orphan",
				"start the app, which declares it. One that is removed for good: "+
					"docs/adopting.md#what-is-left-on-the-broker")
		}
	}
	if orphans := s.Status.Orphans; orphans.Messages > 0 {
		found(orphans.Queue, messages(orphans.Messages)+" came back to a work queue that was gone",
			s.command("dead", "redrive", orphans.Queue), "docs/operations.md#orphansabovezero")
	}
	for _, d := range s.Drift {
		if d.Kind == deadletter.Create {
			found(d.Object+" "+d.Name, "is missing", "start the app, which declares it. One that runs does so within "+
				"30 s, or later: docs/operations.md#lost-bindings")
		}
	}
}

func tiers(s *Snapshot, found sink) {
	for _, w := range s.works() {
		for _, t := range w.Tiers {
			if t.Retired {
				found(t.Queue, "a binding is missing: no message gets to this tier, or back from it by its own key; it has "+
					messages(t.Messages),
					"where a schedule has "+backoff.Tier(t.Delay).String()+", start the app: it binds it. Otherwise remove "+
						"the tier", s.command("tiers", "prune", "--dry-run"))
			}
		}
	}
}

// working are the states of a queue that answers, or will.
var working = []string{"", "running", "idle", "flow", "syncing", "recovering"}

func states(s *Snapshot, found sink) {
	for _, name := range s.own() {
		if state := s.Inventory.Queues[name].State; !slices.Contains(working, state) {
			found(name, "the broker states that it is "+state+": nothing can be published to it, or comes from it",
				"rabbitmq-queues quorum_status --vhost "+shell.Word(s.Vhost)+" "+shell.Word(name),
				"start the nodes that are down. With all of them up: docs/brokers.md#feature-flags-at-an-upgrade and "+
					"docs/limits.md#a-node-that-forwards-nothing-any-more")
		}
	}
}

func overdue(s *Snapshot, found sink) {
	seen := map[string]bool{}
	add := func(queue string, due int, look string) {
		if !seen[queue] {
			seen[queue] = true
			found(queue, messages(due)+" due, and the broker cannot forward them: a work queue is full or away, "+
				"nothing is bound to its return exchange, or its node forwards nothing", look,
				"docs/scale.md#overdue-tiers", "docs/limits.md#a-node-that-forwards-nothing-any-more")
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
			why, do := s.away(w.Name)
			found(w.Name, "no consumer, and "+messages(w.Messages)+": "+why, do)
		}
	}
}

// away returns why a work queue has no consumer.
func (s *Snapshot) away(queue string) (why, do string) {
	why, do = "its app is down, or is none of those that were asked", "start the app, or name its --health"
	for _, app := range s.Apps {
		if app.Health == nil {
			why, do = "its app is down, if it is one that does not answer", "start the app of "+app.URL
			continue
		}
		for _, sub := range app.Health.Subscriptions {
			if sub.Queue == queue {
				return idle(sub, app.URL)
			}
		}
	}
	if len(s.Apps) == 0 {
		return "its handler is paused, or its app is down", "the --health URL of the app shows which"
	}
	return why, do
}

// idle describes a handler that takes no messages.
func idle(sub retry.SubscriptionHealth, address string) (why, do string) {
	if len(sub.Paused) == 0 {
		return fmt.Sprintf("its handler %s runs, and does not consume since %s: %s", sub.Name, utc(sub.Since),
			sub.LastError), "repair what the error names: docs/operations.md#health"
	}
	switch sub.Paused[len(sub.Paused)-1] { // they are sorted, and a call of Pause is the last
	case "paused":
		do = "call Resume in " + address + ": docs/operations.md#pause-a-handler"
	case "holding":
		do = "repair what refuses its copies: docs/operations.md#holding"
	default:
		do = "repair what the handler needs, and it goes on by itself: docs/outages.md#the-breaker"
	}
	return fmt.Sprintf("its handler %s is %s since %s", sub.Name, strings.Join(sub.Paused, " and "),
		utc(sub.PausedSince)), do
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// health finds what is wrong with apps, besides what consumers has.
func health(s *Snapshot, found sink) {
	unconsumed := map[string]bool{}
	for _, w := range s.works() {
		unconsumed[w.Name] = w.Consumers == 0
	}
	for _, app := range s.Apps {
		add := func(what, do string) { found(app.URL, what, do) }
		if app.Health == nil {
			add("its health cannot be read: "+app.Error, "start the app, or correct the address")
			continue
		}
		for _, link := range app.Health.Links {
			if !link.Connected {
				add(fmt.Sprintf("its %s connection is not open since %s: %s", link.Name, utc(link.Since),
					link.LastError), "look at broker, network and password: docs/operations.md#health")
			} else if link.Blocked {
				add("an alarm of the broker blocks its "+link.Name+" connection",
					"docs/operations.md#connectionblocked")
			}
		}
		for _, sub := range app.Health.Subscriptions {
			if !unconsumed[sub.Queue] && (len(sub.Paused) > 0 || !sub.Consuming) {
				add(idle(sub, app.URL))
			}
			if blocked := len(sub.Blocked); blocked > 0 {
				of := " of handler " + sub.Name
				add(lettertext.Plural(blocked, "key"+of+" is blocked", "keys"+of+" are blocked"),
					s.command("order", "status", sub.Queue)+" names them: docs/operations.md#orderblocked")
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
				found(app.URL, fmt.Sprintf("a message that its client cannot read has ended its %s connection, the last "+
					"time at %s; the message is in a work queue, or after its deliveries a dead letter", link.Name,
					utc(link.LastErrorAt)), "docs/limits.md#messages-that-go-clients-cannot-read")
			}
		}
	}
}

// waysIn find what an app can come from. docs/adopting.md has the steps.
var waysIn = []rule{{"delayed-exchange", delayedExchanges}, {"ttl-queue", ttlQueues}, {"poison-queue", poisonQueues}}

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
