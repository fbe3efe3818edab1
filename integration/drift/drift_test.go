// Package drift_test compares topologies with a broker, by the management API.
package drift_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/definitions"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

type shop struct {
	t    *testing.T
	name string
}

func newShop(t *testing.T) shop {
	t.Helper()
	name := broker.Name(t, "drift")
	broker.Clean(t, name)
	return shop{t, name}
}

func (s shop) queue(base string) string { return base + "_" + s.name }

func (s shop) wanted(base, group string, change func(*deadletter.Wanted)) deadletter.Wanted {
	w := deadletter.Wanted{
		Topology: topology.Config{Prefix: s.name, Tiers: backoff.Schedule{time.Second, time.Minute}.Tiers()},
		Queue:    topology.Queue{Name: s.queue(base), Durable: true},
	}
	if group != "" {
		w.Topology.TierGroup = s.queue(group)
	}
	if change != nil {
		change(&w)
	}
	return w
}

func (s shop) store() *deadletter.Store {
	s.t.Helper()
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(s.t), Management: broker.ManagementURL(s.t)}, nil)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, store.Close()) })
	return store
}

func (s shop) compare(wanted ...deadletter.Wanted) deadletter.Report {
	s.t.Helper()
	report, err := s.store().Compare(s.t.Context(), wanted...)
	require.NoError(s.t, err)
	return report
}

func TestApplyLeavesNoDrift(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	classic := s.wanted("classic", "group", func(w *deadletter.Wanted) { w.Topology.WorkQueueMode = topology.Leave })
	wanted := []deadletter.Wanted{s.wanted("orders", "", nil), s.wanted("quiet", "group", nil), classic}
	report := s.compare(wanted...)
	assert.True(t, report.Drifted())
	assert.Empty(t, report.Of(deadletter.Conflict))
	missing := 3 + 3 + 1 + 2 + 2 + 1 + 4 + 2 // work queues, dead-letter queues, orphans, tiers, tiers of the group, inbox, exchanges
	missing += 1 + 1 + 2*2 + 1 + 2 + 2*3 + 2 // bindings of the orphans, and of each work queue
	assert.Len(t, report.Of(deadletter.Create), missing, "%v", report)
	applied, err := s.store().Apply(t.Context(), wanted...)
	require.NoError(t, err)
	assert.Equal(t, report, applied)
	after := s.compare(wanted...)
	assert.False(t, after.Drifted(), "%v", after)
	again, err := s.store().Apply(t.Context(), wanted...)
	require.NoError(t, err)
	assert.Equal(t, after, again, "it may be repeated")
}

func TestConflictsAreExplained(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	channel := broker.Channel(t)
	before := s.wanted("orders", "", func(w *deadletter.Wanted) { w.Queue.Arguments = amqp091.Table{"x-queue-type": "classic"} })
	require.NoError(t, topology.New(before.Topology, before.Queue).Declare(channel))
	require.NoError(t, channel.ExchangeDelete(s.name+".orphans", false, false))
	require.NoError(t, channel.ExchangeDeclare(s.name+".orphans", "topic", true, false, false, false, nil))
	now := s.wanted("orders", "", func(w *deadletter.Wanted) {
		w.Queue.Arguments = amqp091.Table{"x-max-priority": int64(3)}
		w.Topology.DeadLetters.MaxLength = 1000
		w.Topology.TierArguments = amqp091.Table{"x-max-length": 10}
	})
	report := s.compare(now)
	assert.True(t, report.Drifted())
	have := map[string]string{}
	for _, d := range report.Of(deadletter.Conflict) {
		have[d.Name+" "+d.Argument] = d.Have + " " + d.Want
		assert.Contains(t, d.Reason, "RabbitMQ cannot change the arguments")
		assert.NotEmpty(t, d.Advice)
	}
	tier := s.queue("orders") + "." + s.name
	assert.Equal(t, map[string]string{
		s.queue("orders") + " x-max-priority":    "none 3",
		s.queue("orders") + ".dead x-max-length": "none 1000",
		s.queue("orders") + ".dead x-overflow":   "none drop-head",
		tier + ".1s x-max-length":                "none 10",
		tier + ".1m x-max-length":                "none 10",
		s.name + ".orphans type":                 "topic fanout",
	}, have)
	_, err := s.store().Apply(t.Context(), now)
	require.ErrorIs(t, err, deadletter.ErrConflict)
	for _, d := range report.Of(deadletter.Conflict) {
		if d.Name == s.queue("orders")+".dead" && d.Argument == "x-max-length" {
			assert.Contains(t, d.String(), `rabbitmqctl set_policy -p '/' --apply-to queues`)
			assert.Contains(t, d.String(), `{"max-length":1000}`)
		}
	}
}

// TestDriftAfterDeletions: deleted queues and bindings are declared again.
func TestDriftAfterDeletions(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	channel := broker.Channel(t)
	w := s.wanted("orders", "", nil)
	require.NoError(t, topology.New(w.Topology, w.Queue).Declare(channel))
	require.NoError(t, channel.QueueUnbind(s.queue("orders"), "1s."+s.queue("orders"), s.name+".return", nil))
	_, err := channel.QueueDelete(s.queue("orders")+"."+s.name+".1m", false, false, false)
	require.NoError(t, err)
	names := func(differences []deadletter.Difference) (names []string) {
		for _, d := range differences {
			names = append(names, d.Object+" "+d.Name)
		}
		return names
	}
	tier := s.queue("orders") + "." + s.name + ".1m"
	assert.Equal(t, []string{
		"queue " + tier, "binding " + tier + " of " + s.name + ` with key "1m.` + s.queue("orders") + `"`,
		"binding " + s.queue("orders") + " of " + s.name + `.return with key "1s.` + s.queue("orders") + `"`,
	}, names(s.compare(w).Of(deadletter.Create)))
	_, err = s.store().Apply(t.Context(), w)
	require.NoError(t, err)
	assert.False(t, s.compare(w).Drifted())

	shorter := s.wanted("orders", "", func(w *deadletter.Wanted) { w.Topology.Tiers = w.Topology.Tiers[:1] })
	report := s.compare(shorter)
	assert.False(t, report.Drifted(), "the tier of an earlier schedule is no drift")
	assert.Equal(t, []string{"queue " + tier}, names(report.Of(deadletter.Note)))
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	client := broker.Management(t)
	w := s.wanted("orders", "", func(w *deadletter.Wanted) { w.Topology.WorkQueueMode = topology.Leave })
	existing := w.Queue
	existing.Arguments = amqp091.Table{"x-queue-type": "classic"}
	broker.Declare(t, topology.New(w.Topology, existing).Declare)
	protects := w
	protects.Topology.WorkQueueMode = topology.Protect
	report := s.compare(protects)
	assert.False(t, report.Drifted())
	require.Len(t, report.Of(deadletter.Note), 1)
	assert.Contains(t, report.Of(deadletter.Note)[0].Advice, "rabbitmqctl set_policy")

	put := func(name, pattern string, definition rabbithole.PolicyDefinition) {
		_, err := client.PutPolicy("/", s.queue(name), rabbithole.Policy{Pattern: pattern, ApplyTo: "queues", Priority: 9, Definition: definition})
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = client.DeletePolicy("/", s.queue(name)) })
	}
	put("work", "^"+regexp.QuoteMeta(s.queue("orders"))+"$", rabbithole.PolicyDefinition{"dead-letter-exchange": s.name, "dead-letter-routing-key": "dead." + s.queue("orders")})
	put("short", "^"+regexp.QuoteMeta(s.queue("orders"))+".*(1m|1s)$", rabbithole.PolicyDefinition{"message-ttl": 30_000, "dead-letter-routing-key": "elsewhere"})
	put("few", "^"+regexp.QuoteMeta(s.queue("orders")+".dead")+"$", rabbithole.PolicyDefinition{"max-length": 5, "expires": 3_600_000})
	var notes, policies []deadletter.Difference
	broker.Eventually(t, 60*time.Second, func() bool {
		report = s.compare(protects)
		notes, policies = report.Of(deadletter.Note), report.Of(deadletter.Policy)
		return len(notes) == 1 && len(policies) == 4
	}, "the policies work")
	assert.True(t, report.Drifted())
	assert.Equal(t, "max-length", notes[0].Argument, "the work queue is protected by a policy")
	got := map[string]string{}
	for _, d := range policies {
		got[d.Name+" "+d.Argument] = d.Have
	}
	tier, by := s.queue("orders")+"."+s.name, ` by the policy "`+s.queue("short")+`"`
	assert.Equal(t, map[string]string{
		tier + ".1m message-ttl": "30000" + by, tier + ".1m dead-letter-routing-key": "elsewhere" + by,
		tier + ".1s dead-letter-routing-key": "elsewhere" + by,
		s.queue("orders") + ".dead expires":  `3600000 by the policy "` + s.queue("few") + `"`,
	}, got)
}

// TestUnprotectedQuorum: RabbitMQ 4.0 to 4.2 drop messages of such a work queue, so apps refuse it.
func TestUnprotectedQuorum(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, err := broker.Channel(t).QueueDeclare(s.queue("orders"), true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	w := s.wanted("orders", "", nil)
	v := broker.Version(t)
	assert.Equal(t, 400 <= v && v <= 402, len(s.compare(w).Of(deadletter.Conflict)) == 1)
	w.AllowUnprotectedQuorum = true
	assert.Empty(t, s.compare(w).Of(deadletter.Conflict))
}

// TestAStreamIsAConflict: apps refuse it as their work queue.
func TestAStreamIsAConflict(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, err := broker.Channel(t).QueueDeclare(s.queue("orders"), true, false, false, false, amqp091.Table{"x-queue-type": "stream"})
	require.NoError(t, err)
	for _, arguments := range []amqp091.Table{nil, {"x-queue-type": "quorum"}, {"x-queue-type": "classic"}, {"x-queue-type": "stream"}} {
		for _, group := range []string{"", "group"} {
			report := s.compare(s.wanted("orders", group, func(w *deadletter.Wanted) { w.Queue.Arguments = arguments }))
			conflicts := report.Of(deadletter.Conflict)
			require.Len(t, conflicts, 1, "%v", arguments)
			assert.Equal(t, "x-queue-type stream", conflicts[0].Argument+" "+conflicts[0].Have)
			assert.Contains(t, conflicts[0].String(), "cannot be retried")
			assert.Len(t, report.Differences, 1+len(report.Of(deadletter.Create)), "no advice besides: %v", report)
		}
	}
}

// TestImportedDefinitionsHaveNoDrift: the JSON of a merged topology is what the management API imports.
func TestImportedDefinitionsHaveNoDrift(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	limited := s.wanted("orders", "", func(w *deadletter.Wanted) {
		w.Topology.DeadLetters = topology.Retention{MaxLength: 10, MaxAge: time.Hour}
		w.Topology.TierArguments = amqp091.Table{"x-max-length": 100}
		w.Topology.DeadLetterArguments = amqp091.Table{"x-quorum-target-group-size": 3}
	})
	wanted := []deadletter.Wanted{limited, s.wanted("quiet", "group", nil), s.wanted("loud", "group", nil)}
	var topologies []topology.Topology
	for _, w := range wanted {
		topologies = append(topologies, topology.New(w.Topology, w.Queue))
	}
	all, err := definitions.Merge(topologies...)
	require.NoError(t, err)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	client := broker.Management(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, client.Endpoint+"/api/definitions/%2F", bytes.NewReader(text))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.SetBasicAuth(client.Username, client.Password)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusNoContent, response.StatusCode)
	report := s.compare(wanted...)
	assert.False(t, report.Drifted(), "%v", report)
}

// TestExistingWorkQueueDecides: a classic work queue of a group needs an inbox, also where an app would declare a quorum queue.
func TestExistingWorkQueueDecides(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	channel := broker.Channel(t)
	_, err := channel.QueueDeclare(s.queue("orders"), true, false, false, false, amqp091.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	w := s.wanted("orders", "group", nil)
	_, err = s.store().Apply(t.Context(), w)
	require.NoError(t, err)
	inbox := s.queue("orders") + "." + s.name + ".inbox"
	_, err = channel.QueueDelete(inbox, false, false, false)
	require.NoError(t, err, "the inbox is declared")
	created := s.compare(w).Of(deadletter.Create)
	require.NotEmpty(t, created)
	assert.Equal(t, inbox, created[0].Name)
}

// TestOtherLayoutsAreNoted: a work queue that moves to another prefix or group keeps what it had, until it is removed.
func TestOtherLayoutsAreNoted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	notes := func(w deadletter.Wanted) (texts []string) {
		for _, d := range s.compare(w).Of(deadletter.Note) {
			if d.Object == "queue" && d.Name == s.queue("orders") {
				texts = append(texts, d.String())
			}
		}
		return texts
	}
	own := s.wanted("orders", "", nil)
	_, err := s.store().Apply(t.Context(), own)
	require.NoError(t, err)
	assert.Empty(t, notes(own))
	grouped := s.wanted("orders", "group", nil)
	_, err = s.store().Apply(t.Context(), grouped)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(notes(grouped), "\n"), "it also has tiers of its own: use the earlier TierGroup")
	assert.Contains(t, strings.Join(notes(own), "\n"), "it also is in the tier group "+s.queue("group"))
	renamed := s.wanted("orders", "", func(w *deadletter.Wanted) { w.Topology.Prefix = s.name + "_new" })
	assert.Contains(t, strings.Join(notes(renamed), "\n"), "set Prefix to \""+s.name+"\", or keep the new one: `wmretry status --prefix "+s.name+"`")
}
