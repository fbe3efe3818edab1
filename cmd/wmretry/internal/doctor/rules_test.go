package doctor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

var now = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// healthy is a snapshot of the work queue orders, with a tier and a consumer, and of its app.
func healthy() Snapshot {
	quorum := func(arguments management.Arguments) management.Queue {
		return management.Queue{Type: "quorum", Durable: true, Arguments: arguments}
	}
	queues := map[string]management.Queue{
		"orders":          quorum(management.Arguments{"x-queue-type": "quorum", "x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders"}),
		"orders.dead":     quorum(management.Arguments{"x-delivery-limit": int64(1_000_000)}),
		"retry.orphans":   quorum(management.Arguments{"x-delivery-limit": int64(1_000_000)}),
		"orders.retry.1s": quorum(management.Arguments{"x-message-ttl": int64(1000), "x-dead-letter-exchange": "retry.return"}),
	}
	for name, q := range queues {
		q.Name = name
		queues[name] = q
	}
	return Snapshot{
		At: now, Prefix: "retry", Vhost: "/shop",
		About: management.About{Version: "4.3.6", User: "ops", Tags: []string{"administrator"}, Ahead: new(management.Ahead)},
		Inventory: management.Inventory{
			Queues: queues, Exchanges: map[string]management.Exchange{},
			Bindings: map[management.Binding]bool{{Exchange: "retry", Queue: "orders.dead", Key: "dead.orders"}: true},
		},
		Status: letters.Status{Queues: []letters.WorkQueue{{
			Name: "orders", Depth: letters.Depth{Queue: "orders", Consumers: 1}, Dead: letters.Depth{Queue: "orders.dead"},
			Tiers: []letters.Tier{{Depth: letters.Depth{Queue: "orders.retry.1s"}, Delay: time.Second}},
		}}},
		Apps: []App{{URL: "http://shop/health", Health: &retry.Health{
			Links:         []retry.LinkHealth{{Name: "publishing", Connected: true}},
			Subscriptions: []retry.SubscriptionHealth{{Name: "billing", Queue: "orders", Consuming: true}},
		}}},
	}
}

func ahead(seconds management.Ahead) *management.Ahead { return &seconds }

func TestRules(t *testing.T) {
	queue := func(s *Snapshot, name string, change func(*management.Queue)) {
		q := s.Inventory.Queues[name]
		q.Name, q.Durable = name, true
		change(&q)
		s.Inventory.Queues[name] = q
	}
	hand := func(name string, arguments management.Arguments, messages int) func(*Snapshot) {
		return func(s *Snapshot) {
			queue(s, name, func(q *management.Queue) { q.Arguments, q.Messages = arguments, messages })
		}
	}
	home := management.Arguments{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
	limit := func(version string, limit any) func(*Snapshot) {
		return func(s *Snapshot) {
			s.About.Version = version
			queue(s, "orders.dead", func(q *management.Queue) {
				if q.Arguments = nil; limit != nil {
					q.Arguments = management.Arguments{"x-delivery-limit": limit}
				}
			})
		}
	}
	version := func(version, day string) func(*Snapshot) {
		return func(s *Snapshot) {
			s.About.Version = version
			s.At, _ = time.Parse(time.RFC3339, day+"T23:59:59Z")
		}
	}
	work := func(change func(*letters.WorkQueue)) func(*Snapshot) {
		return func(s *Snapshot) { change(&s.Status.Queues[0]) }
	}
	app := func(change func(*retry.Health)) func(*Snapshot) {
		return func(s *Snapshot) { change(s.Apps[0].Health) }
	}
	difference := func(d deadletter.Difference, effective management.Arguments) func(*Snapshot) {
		return func(s *Snapshot) {
			s.Drift = []deadletter.Difference{d}
			queue(s, d.Name, func(q *management.Queue) { q.Effective = effective })
		}
	}
	delays := func(version string, effective management.Arguments) func(*Snapshot) {
		return func(s *Snapshot) {
			s.About.Version = version
			queue(s, "orders", func(q *management.Queue) {
				q.Effective, q.Arguments["x-delayed-retry-type"] = effective, "all"
				q.Arguments["x-max-length"] = int64(5)
			})
		}
	}
	operator := func(name string) func(*Snapshot) {
		return func(s *Snapshot) { queue(s, name, func(q *management.Queue) { q.Operator = "op" }) }
	}
	may := func(declared, read string) func(*Snapshot) {
		return func(s *Snapshot) {
			s.About.Permissions = &management.Permissions{Configure: declared, Write: declared, Read: read}
		}
	}
	partitions := func(s *Snapshot) {
		s.Status.Queues[0].Tiers = nil
		queue(s, "orders.order.0", func(q *management.Queue) {
			q.Arguments = management.Arguments{"x-delivery-limit": int64(3_000_005)}
		})
		wanted := s.wanted()[0].Topology
		assert.Equal(t, []int{3, 5}, []int{wanted.Partitions, wanted.Prefetch})
	}
	const all = `^(orders(\.dead|\.retry\..*)?|retry(\.return(\.any)?|\.orphans)?)$`
	noConsumer := work(func(w *letters.WorkQueue) { w.Consumers, w.Messages = 0, 3 })
	paused := func(reasons ...string) func(*Snapshot) {
		return app(func(h *retry.Health) {
			h.Subscriptions[0].Consuming, h.Subscriptions[0].Paused, h.Subscriptions[0].PausedSince = false, reasons, now
		})
	}
	for name, row := range map[string]struct {
		changes []func(*Snapshot)
		want    string // rule, subject, what, and what to do; empty: nothing
	}{
		"healthy":                {nil, ""},
		"4.3 on its last day":    {[]func(*Snapshot){version("4.3.6", "2026-11-30")}, ""},
		"4.3 later":              {[]func(*Snapshot){version("4.3.6", "2026-12-01")}, "support|RabbitMQ 4.3.6|community support ended on 2026-11-30|docs/support.md"},
		"4.2":                    {[]func(*Snapshot){version("4.2.0", "2026-11-25")}, "support|RabbitMQ 4.2.0|community support has ended|docs/support.md"},
		"3.10":                   {[]func(*Snapshot){version("3.10.8", "2026-11-25")}, "support|RabbitMQ 3.10.8|community support has ended|docs/support.md"},
		"3.9":                    {[]func(*Snapshot){version("3.9.1", "2026-11-25")}, "support|RabbitMQ 3.9.1|needs 3.10 or later|docs/support.md"},
		"4.4":                    {[]func(*Snapshot){version("4.4.0-rc.1", "2026-11-25")}, "support|RabbitMQ 4.4.0-rc.1|not tested on it|docs/support.md"},
		"5":                      {[]func(*Snapshot){version("5.0.0", "2026-11-25")}, "support|RabbitMQ 5.0.0|not tested on it|docs/support.md"},
		"unknown version":        {[]func(*Snapshot){version("", "2026-11-25")}, "support|RabbitMQ |not known|docs/support.md"},
		"clock of the broker":    {[]func(*Snapshot){func(s *Snapshot) { s.About.Ahead = ahead(6) }}, "clock|the management API|+6 s|synchronise"},
		"clock of an app":        {[]func(*Snapshot){func(s *Snapshot) { s.Apps[0].Ahead = ahead(-90) }}, "clock|http://shop/health|-90 s|synchronise"},
		"clocks near":            {[]func(*Snapshot){func(s *Snapshot) { s.About.Ahead, s.Apps[0].Ahead = ahead(-5), ahead(5) }}, ""},
		"too wide":               {[]func(*Snapshot){func(s *Snapshot) { s.About.Permissions = &management.Permissions{Read: ".*"} }}, `permissions|ops|read ".*"|--queue orders --schedule 1s --permissions`},
		"pattern of PCRE":        {[]func(*Snapshot){func(s *Snapshot) { s.About.Permissions = &management.Permissions{Read: "^(?!x)"} }}, "permissions|ops|lacks write on retry|--permissions"},
		"too narrow":             {[]func(*Snapshot){func(s *Snapshot) { s.About.Permissions = &management.Permissions{} }}, "permissions|ops|lacks read on orders.dead|--permissions"},
		"viewer":                 {[]func(*Snapshot){func(s *Snapshot) { s.About.Permissions = &management.Permissions{Read: `^orders\.dead$`} }}, ""},
		"app":                    {[]func(*Snapshot){may(all, all)}, ""},
		"no tiers":               {[]func(*Snapshot){may(all, `^(orders(\.dead)?|retry(\.return(\.any)?|\.orphans)?)$`)}, "permissions|ops|for the work queue orders it lacks read on orders.retry.1s (1 in all)|--permissions"},
		"declares no tiers":      {[]func(*Snapshot){may(`^(orders(\.dead)?|retry(\.return(\.any)?|\.orphans)?)$`, all)}, "permissions|ops|lacks configure on orders.retry.1s, write on orders.retry.1s (2 in all)|--permissions"},
		"publishes no copies":    {[]func(*Snapshot){may("^$", `^(orders(\.dead|\.retry\..*)?|retry\.(return(\.any)?|orphans))$`)}, "permissions|ops|lacks write on retry (1 in all)|--permissions"},
		"no members":             {[]func(*Snapshot){partitions, may(`^(orders(\.dead|\.retry\.inbox|\.order(\.\d)?)?|retry(\.return(\.any)?|\.orphans|\.order)?)$`, `^(orders|retry)\b`)}, "permissions|ops|lacks configure on orders.order.members, write on orders.order.members (2 in all)|--queue orders --partitions 3 --permissions"},
		"another's letters":      {[]func(*Snapshot){may("^$", `^mails\.dead$`)}, "permissions|ops|lacks read on orders.dead (1 in all)|--permissions"},
		"unprotected":            {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Note, Object: "queue", Name: "orders", Argument: "x-dead-letter-exchange", Have: "none", Reason: "dropped", Advice: "set_policy"}, nil)}, "unprotected|orders|dropped|set_policy"},
		"stream":                 {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Conflict, Object: "queue", Name: "orders", Argument: "x-queue-type", Have: "stream", Reason: "stays", Advice: "another queue"}, nil)}, "unprotected|orders|a stream, which apps refuse: stays|another queue"},
		"unprotected, classic":   {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Note, Object: "queue", Name: "mails", Argument: "x-dead-letter-exchange", Have: "none"}, nil)}, ""},
		"policy":                 {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Policy, Object: "queue", Name: "orders.retry.1s", Argument: "message-ttl", Have: `1 by the policy "p"`, Reason: "early", Advice: "narrow"}, management.Arguments{"message-ttl": int64(1)})}, "policy|orders.retry.1s|message-ttl is 1|narrow\nrabbitmqctl list_policies -p /shop"},
		"operator policy":        {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Policy, Object: "queue", Name: "orders.retry.1s", Argument: "message-ttl", Have: "1", Advice: "narrow"}, management.Arguments{"message-ttl": int64(1)}), operator("orders.retry.1s")}, "policy|orders.retry.1s|message-ttl is 1|list_policies -p /shop\nrabbitmqctl list_operator_policies -p /shop"},
		"loop, operator policy":  {[]func(*Snapshot){delays("4.3.6", nil), operator("orders")}, "loop|orders|loops|list_policies -p /shop\nrabbitmqctl list_operator_policies -p /shop"},
		"policy of all letters":  {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Note, Object: "queue", Name: "orders.dead", Argument: "max-length", Have: `9 by the policy "p"`, Reason: "lost"}, management.Arguments{"max-length": int64(9)})}, "policy|orders.dead|lost|where this is not wanted"},
		"policy of a retention":  {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Note, Object: "queue", Name: "orders.dead", Argument: "max-length", Have: `9 by the policy "dead letters of orders"`, Reason: "lost"}, management.Arguments{"max-length": int64(9)})}, ""},
		"conflict of arguments":  {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Conflict, Object: "queue", Name: "orders.dead", Argument: "x-max-length", Have: "9", Want: "none"}, nil)}, ""},
		"conflict with a policy": {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Conflict, Object: "queue", Name: "orders.dead", Argument: "x-max-length", Have: "9"}, management.Arguments{"max-length": int64(9)})}, ""},
		"delays and a limit":     {[]func(*Snapshot){delays("4.3.6", nil)}, "loop|orders|(0 now): with more delayed ones|remove the limit"},
		"the same, by a policy":  {[]func(*Snapshot){delays("4.3.6", management.Arguments{"max-length-bytes": int64(9), "overflow": "drop-head"}), func(s *Snapshot) { delete(s.Inventory.Queues["orders"].Arguments, "x-max-length") }}, "loop|orders|loops without an end|docs/brokers.md#delayed"},
		"limit that refuses":     {[]func(*Snapshot){delays("4.3.6", management.Arguments{"overflow": "reject-publish"})}, ""},
		"limit before 4.3":       {[]func(*Snapshot){delays("4.2.0", nil)}, "support|RabbitMQ 4.2.0|community support has ended|docs/support.md"},
		"delays disabled":        {[]func(*Snapshot){delays("4.3.6", nil), func(s *Snapshot) { s.Inventory.Queues["orders"].Arguments["x-delayed-retry-type"] = "disabled" }}, ""},
		"limit, delayed publish": {[]func(*Snapshot){func(s *Snapshot) {
			queue(s, "orders.dead", func(q *management.Queue) { q.Delayed = 7; q.Arguments["x-max-length"] = int64(5) })
		}}, "loop|orders.dead|(7 now)|remove the limit"},
		"queue that is down":     {[]func(*Snapshot){func(s *Snapshot) { queue(s, "orders.retry.1s", func(q *management.Queue) { q.State = "down" }) }}, "state|orders.retry.1s|it is down|rabbitmq-queues quorum_status --vhost /shop orders.retry.1s"},
		"queue that is up":       {[]func(*Snapshot){func(s *Snapshot) { queue(s, "orders", func(q *management.Queue) { q.State = "running" }) }}, ""},
		"low limit":              {[]func(*Snapshot){limit("4.3.6", int64(6))}, "limit|orders.dead|limit is 6|wmretry dead discard orders --export letters.jsonl"},
		"default limit":          {[]func(*Snapshot){limit("4.3.6", nil)}, "limit|orders.dead|limit is 20|export"},
		"no limit":               {[]func(*Snapshot){limit("4.3.6", int64(-1))}, ""},
		"missing binding":        {[]func(*Snapshot){difference(deadletter.Difference{Kind: deadletter.Create, Object: "binding", Name: "orders of retry.return"}, nil)}, "missing|binding orders of retry.return|is missing|start the app"},
		"tier without a binding": {[]func(*Snapshot){work(func(w *letters.WorkQueue) { w.Tiers[0].Retired, w.Tiers[0].Messages = true, 1 })}, "tier|orders.retry.1s|it has 1 message|wmretry tiers prune --dry-run"},
		"tier alone":             {[]func(*Snapshot){work(func(w *letters.WorkQueue) { w.Tiers[0].Retired = true }), func(s *Snapshot) { s.Inventory.Bindings = nil }}, "tier|orders.retry.1s|it has 0 messages|start the app"},
		"overdue tier":           {[]func(*Snapshot){work(func(w *letters.WorkQueue) { w.Tiers[0].Overdue = 33 })}, "overdue|orders.retry.1s|33 messages due|wmretry status orders"},
		"forwarding tier":        {[]func(*Snapshot){work(func(w *letters.WorkQueue) { w.Tiers[0].Overdue = 32 })}, ""},
		"overdue by an app":      {[]func(*Snapshot){app(func(h *retry.Health) { h.Tiers = []retry.TierHealth{{Queue: "x.retry.1s", Overdue: 2}} })}, "overdue|x.retry.1s|2 messages due|wmretry status"},
		"overdue inbox": {[]func(*Snapshot){
			work(func(w *letters.WorkQueue) { w.Inbox.Queue = "orders.retry.inbox" }),
			func(s *Snapshot) {
				queue(s, "orders.retry.inbox", func(q *management.Queue) { q.Expired = 40 })
			},
		}, "overdue|orders.retry.inbox|40 messages due|wmretry status orders"},
		"no work queue":          {[]func(*Snapshot){noConsumer, work(func(w *letters.WorkQueue) { w.Missing = true })}, "missing|orders|does not exist|start the app"},
		"orphans":                {[]func(*Snapshot){func(s *Snapshot) { s.Status.Orphans = letters.Depth{Queue: "retry.orphans", Messages: 1} }}, "missing|retry.orphans|1 message came back|wmretry dead redrive retry.orphans"},
		"no consumer, another's": {[]func(*Snapshot){noConsumer, app(func(h *retry.Health) { h.Subscriptions[0].Queue = "mails" })}, "consumers|orders|its app is down, or is none|start the app"},
		"no consumer, paused":    {[]func(*Snapshot){noConsumer, paused("paused")}, "consumers|orders|3 messages: its handler billing is paused since 2026-11-25T12:00:00Z|call Resume in http://shop/health"},
		"no consumer, failing":   {[]func(*Snapshot){noConsumer, paused("failing")}, "consumers|orders|is failing since|goes on by itself"},
		"no consumer, both":      {[]func(*Snapshot){noConsumer, paused("holding", "paused")}, "consumers|orders|is holding and paused since|call Resume"},
		"no consumer, not up":    {[]func(*Snapshot){noConsumer, app(func(h *retry.Health) { h.Subscriptions[0].Consuming, h.Subscriptions[0].LastError = false, "error 406" })}, "consumers|orders|does not consume since 0001-01-01T00:00:00Z: error 406|repair"},
		"no consumer, down":      {[]func(*Snapshot){noConsumer, app(func(h *retry.Health) { h.Subscriptions = nil })}, "consumers|orders|its app is down, or is none|start the app"},
		"no consumer, no app":    {[]func(*Snapshot){noConsumer, func(s *Snapshot) { s.Apps = nil }}, "consumers|orders|paused, or its app is down|--health"},
		"paused beside another":  {[]func(*Snapshot){paused("holding")}, "health|http://shop/health|handler billing is holding|docs/operations.md#holding"},
		"app that is down":       {[]func(*Snapshot){func(s *Snapshot) { s.Apps[0] = App{URL: "http://shop", Error: "no answer"} }}, "health|http://shop|cannot be read: no answer|start the app"},
		"no connection":          {[]func(*Snapshot){app(func(h *retry.Health) { h.Links[0].Connected, h.Links[0].LastError = false, "EOF" })}, "health|http://shop/health|publishing connection is not open since 0001-01-01T00:00:00Z: EOF|look at"},
		"unreadable message": {[]func(*Snapshot){app(func(h *retry.Health) {
			h.Links[0].LastError, h.Links[0].LastErrorAt = `Exception (501) Reason: "Exception (502) Reason: \"invalid field or value inside of a frame\""`, now
		})}, "unreadable|http://shop/health|ended its publishing connection, the last time at 2026-11-25T12:00:00Z|docs/limits.md#messages-that-go-clients-cannot-read"},
		"alarm": {[]func(*Snapshot){app(func(h *retry.Health) { h.Links[0].Blocked = true })}, "health|http://shop/health|an alarm of the broker blocks its publishing|connectionblocked"},
		"blocked keys": {[]func(*Snapshot){app(func(h *retry.Health) {
			h.Subscriptions[0].Blocked = make([]string, 2)
		})}, "health|http://shop/health|2 keys of handler billing are blocked|wmretry order status orders"},
		"blocked key": {[]func(*Snapshot){app(func(h *retry.Health) {
			h.Subscriptions[0].Blocked = make([]string, 1)
		})}, "health|http://shop/health|1 key of handler billing is blocked|wmretry order status orders"},
		"partition without a process": {[]func(*Snapshot){hand("mails.order.3", management.Arguments{
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}, 2)}, ""},
		"delayed exchange": {[]func(*Snapshot){func(s *Snapshot) {
			s.Inventory.Exchanges["later"] = management.Exchange{Name: "later", Type: "x-delayed-message"}
			s.Inventory.Bindings[management.Binding{Exchange: "later", Queue: "orders"}] = true
		}}, "delayed-exchange|later|to: orders|publishers send to orders"},
		"queue with a TTL":          {[]func(*Snapshot){hand("wait", management.Arguments{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": int64(9)}, 0)}, "ttl-queue|wait|its messages wait for its TTL, and go to orders|rabbitmqctl list_queues -p /shop name messages"},
		"TTL of each":               {[]func(*Snapshot){hand("wait", home, 2)}, "ttl-queue|wait|2 messages without a consumer can have a TTL each, and go to orders|list_queues"},
		"TTL of each, empty":        {[]func(*Snapshot){hand("wait", home, 0)}, ""},
		"work queue with an app":    {[]func(*Snapshot){hand("wait", home, 2), func(s *Snapshot) { queue(s, "wait", func(q *management.Queue) { q.Consumers = 1 }) }}, ""},
		"tier of another prefix":    {[]func(*Snapshot){hand("x.own.1s", management.Arguments{"x-message-ttl": int64(1), "x-dead-letter-exchange": "own.return", "x-dead-letter-routing-key": "orders"}, 1)}, ""},
		"letters of another prefix": {[]func(*Snapshot){hand("mails.dead", management.Arguments{"x-message-ttl": int64(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}, 1)}, ""},
		"leads to letters":          {[]func(*Snapshot){hand("mails", management.Arguments{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mails.gone"}, 1)}, ""},
		"dead-letter exchange":      {[]func(*Snapshot){hand("wait", management.Arguments{"x-dead-letter-exchange": "back"}, 1), func(s *Snapshot) { s.Inventory.Bindings[management.Binding{Exchange: "back", Queue: "orders"}] = true }}, "ttl-queue|wait|go to orders|list_queues"},
		"poison queue":              {[]func(*Snapshot){hand("orders.Poison", nil, 1)}, "poison-queue|orders.Poison|with 1 message|wmretry dead redrive --as-is orders.Poison"},
		"poison queue, other names": {[]func(*Snapshot){hand("poison $x", nil, 0), func(s *Snapshot) { s.Prefix = "own"; s.Status = letters.Status{}; s.Inventory.Bindings = nil }}, "poison-queue|poison $x|with 0 messages|wmretry dead list --as-is 'poison $x' --prefix own"},
		"letters of another":        {[]func(*Snapshot){func(s *Snapshot) { s.Status.Queues = append(s.Status.Queues, letters.WorkQueue{Name: "other"}) }}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			for _, change := range row.changes {
				change(&s)
			}
			report := Examine(s)
			all := append(report.Findings, report.WaysIn...)
			if row.want == "" {
				assert.Empty(t, all)
				return
			}
			require.Len(t, all, 1, "%+v", all)
			want := strings.Split(row.want, "|")
			assert.Equal(t, want[:2], []string{all[0].Rule, all[0].Subject})
			assert.Contains(t, all[0].What, want[2])
			assert.Contains(t, strings.Join(all[0].Do, "\n"), want[3])
			if len(report.Findings) == 1 {
				assert.Empty(t, Examine(s, all[0].Rule).Findings, "an ignored rule")
			}
		})
	}
}

// TestAppWithoutAnAnswer is named as what to start.
func TestAppWithoutAnAnswer(t *testing.T) {
	s := healthy()
	s.Apps[0].Health = nil
	assert.Equal(t, "start the app of http://shop/health", s.away("orders")[1])
}

// TestNewest: the newest version that the tests run on is the one with support.
func TestNewest(t *testing.T) {
	text, err := os.ReadFile("../../../../tools/rabbitmq-versions")
	require.NoError(t, err)
	versions := strings.Fields(string(text))
	assert.Equal(t, newest, versions[len(versions)-1])
	calendar, err := os.ReadFile("../../../../docs/support.md")
	require.NoError(t, err)
	assert.Contains(t, string(calendar), "| RabbitMQ "+newest+" | tested in CI | **"+newestUntil+"** |")
}

// TestRulesOfFourFour: a management API states the version 4.4.1, and a queue that a header of 4.4 delays. Every other
// rule is that of 4.3.
func TestRulesOfFourFour(t *testing.T) {
	answers := map[string]string{
		"overview":  `{"rabbitmq_version":"4.4.1","erlang_version":"28.1"}`,
		"whoami":    `{"name":"ops","tags":["monitoring"]}`,
		"exchanges": `[]`, "bindings": `[]`,
		"queues": `[{"name":"orders","type":"quorum","durable":true,"state":"running","messages":9,"messages_ready":0,
			"messages_delayed":9,"effective_policy_definition":[],
			"arguments":{"x-dead-letter-exchange":"retry","x-max-length":5}},
			{"name":"orders.dead","type":"quorum","durable":true,"state":"running","arguments":{}}]`,
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(answers[strings.Split(r.URL.Path, "/")[2]]))
	}))
	defer api.Close()
	client, err := management.New(api.URL, management.Broker{Vhost: "/shop", User: "ops", Password: "x"})
	require.NoError(t, err)
	s := healthy()
	s.About, err = client.About(t.Context())
	require.NoError(t, err)
	there, err := client.Inventory(t.Context())
	require.NoError(t, err)
	there.Bindings, s.Inventory = s.Inventory.Bindings, there
	report := Examine(s)
	assert.Equal(t, "watermill-retry is not tested on it", report.Support)
	var found []string
	for _, f := range report.Findings {
		found = append(found, f.Rule+" "+f.Subject+" "+f.What)
	}
	require.Len(t, found, 3, found)
	assert.Contains(t, found[0], "support RabbitMQ 4.4.1")
	assert.Contains(t, found[1], "loop orders it drops its oldest messages at a length limit, and delays")
	assert.Contains(t, found[1], "(9 now)")
	assert.Contains(t, found[2], "limit orders.dead its delivery limit is 20", "as on 4.3")
}

// TestLimitsBefore40: a quorum queue has no limit there, and -1 means no delivery at all.
func TestLimitsBefore40(t *testing.T) {
	s := healthy()
	s.About.Version = "3.10.8"
	for limit, want := range map[any]int{nil: 0, int64(-1): 1, int64(1_000_000): 0} {
		q := s.Inventory.Queues["orders.dead"]
		if q.Arguments = nil; limit != nil {
			q.Arguments = management.Arguments{"x-delivery-limit": limit}
		}
		s.Inventory.Queues["orders.dead"] = q
		assert.Len(t, find(&s, []rule{{"limit", limits}}, nil), want, limit)
	}
}

// TestEachEntryIsUsed: findings.txt has no text that no rule finds. One that is missing is a panic of a row of TestRules.
func TestEachEntryIsUsed(t *testing.T) {
	var source string
	for _, file := range []string{"broker.go", "queues.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		source += string(text)
	}
	entries := regexp.MustCompile(`(?m)^# (.*)$`).FindAllStringSubmatch(findingsText, -1)
	require.NotEmpty(t, entries)
	for _, entry := range entries {
		assert.Contains(t, source, strconv.Quote(entry[1]))
		for _, sentence := range sentences(entry[1]) {
			for _, value := range regexp.MustCompile(`{[^}]+}`).FindAllString(sentence, -1) {
				assert.True(t, value == "{vhost}" || strings.Contains(source, strconv.Quote(value)), value)
			}
		}
	}
}

func TestAsk(t *testing.T) {
	for name, row := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"health": {func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(healthy().Apps[0].Health)
		}, ""},
		"text":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ready")) }, "is not the JSON of a retry.Health"},
		"JSON":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"status":"up"}`)) }, "is not the JSON of a retry.Health"},
		"not ready": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "503 Service Unavailable"},
		"hangs up":  {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(row.answer)
			defer server.Close()
			app := ask(t.Context(), server.URL+"/health?token=canary")
			assert.Equal(t, server.URL+"/health", app.URL)
			assert.NotContains(t, app.Error, "canary")
			assert.Contains(t, app.Error, row.want)
			assert.Equal(t, row.want == "", app.Error == "")
			if row.want == "" {
				assert.Equal(t, healthy().Apps[0].Health, app.Health)
				assert.Equal(t, ahead(0), app.Ahead)
			}
		})
	}
}

// Keys can be personal data: a snapshot has how many there are, and their states.
func TestASnapshotNamesNoKey(t *testing.T) {
	health := healthy().Apps[0].Health
	health.Subscriptions[0].Blocked = []string{"canary 1"}
	health.Subscriptions[0].Keys = map[string]retry.KeyHealth{"canary 2": {Paused: "slow", Limit: 7}, "canary 3": {Parked: 2}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(health)
	}))
	defer server.Close()
	app := ask(t.Context(), server.URL)
	require.NotNil(t, app.Health, app.Error)
	text, err := json.Marshal(app)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "canary")
	assert.Len(t, app.Health.Subscriptions[0].Blocked, 1)
	var states []retry.KeyHealth
	for _, state := range app.Health.Subscriptions[0].Keys {
		states = append(states, state)
	}
	assert.ElementsMatch(t, []retry.KeyHealth{{Paused: "slow", Limit: 7}, {Parked: 2}}, states)
}
