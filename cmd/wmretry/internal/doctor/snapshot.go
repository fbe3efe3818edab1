// Package doctor looks at a virtual host and at the health of apps, and finds what is wrong. It changes nothing. Each
// rule is a function of one Snapshot.
package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// Snapshot is all that the rules look at.
type Snapshot struct {
	At     time.Time
	Prefix naming.Prefix
	Vhost  string

	About     management.About
	Inventory management.Inventory
	Status    letters.Status
	// Drift is how the objects on the broker differ from those that apps with the same tiers declare.
	Drift []deadletter.Difference
	Apps  []App
	// Unseen is what could not be looked at.
	Unseen []string
}

// Read reads a snapshot. endpoints are the addresses of the health of apps.
func Read(
	ctx context.Context, config deadletter.Config, store *deadletter.Store, endpoints []string,
) (s Snapshot, err error) {
	uri, _ := amqp091.ParseURI(config.URI) // the configuration is valid
	client, err := management.New(config.Management, management.Broker{
		Vhost: uri.Vhost, User: uri.Username, Password: uri.Password, TLS: config.TLS,
	})
	if err != nil {
		return Snapshot{}, err
	}
	s = Snapshot{At: time.Now().UTC(), Prefix: naming.Prefix(config.Prefix), Vhost: uri.Vhost, Unseen: []string{}}
	if s.About, err = client.About(ctx); err != nil {
		return Snapshot{}, err
	}
	if s.Status, err = store.Status(ctx); err != nil {
		return Snapshot{}, err
	}
	if s.Inventory, err = client.Inventory(ctx); err != nil {
		return Snapshot{}, err
	}
	if wanted := s.wanted(); len(wanted) > 0 {
		report, err := store.Compare(ctx, wanted...)
		if err != nil {
			s.Unseen = append(s.Unseen, "the topology cannot be compared: "+err.Error())
		}
		s.Drift = report.Differences
	}
	s.askApps(ctx, endpoints)
	if s.About.Permissions == nil {
		s.Unseen = append(s.Unseen, "permissions, which only an administrator sees: rabbitmqctl list_user_permissions "+
			shell.Word(s.About.User))
	}
	return s, nil
}

// askApps reads the health of apps.
func (s *Snapshot) askApps(ctx context.Context, endpoints []string) {
	s.Apps = []App{}
	for _, endpoint := range endpoints {
		s.Apps = append(s.Apps, ask(ctx, endpoint))
	}
	if len(endpoints) == 0 {
		s.Unseen = append(s.Unseen, "the health of apps: --health URL")
	}
}

// works returns the work queues of this prefix. A queue with the name of a dead-letter queue can be another program's.
func (s *Snapshot) works() (works []letters.WorkQueue) {
	for _, w := range s.Status.Queues {
		dead := management.Binding{Exchange: s.Prefix.RetryExchange(), Queue: w.Dead.Queue, Key: naming.DeadKey(w.Name)}
		home := management.Binding{Exchange: s.Prefix.AnyReturnExchange(), Queue: w.Name,
			Key: naming.AnyReturnKey(w.Name)}
		if len(w.Tiers) > 0 || s.Inventory.Bindings[dead] || s.Inventory.Bindings[home] {
			works = append(works, w)
		}
	}
	return works
}

// wanted returns what apps with the same tiers declare. What the tiers lack is a rule of its own.
func (s *Snapshot) wanted() (all []deadletter.Wanted) {
	for _, w := range s.works() {
		queue, exists := s.Inventory.Queues[w.Name]
		config := topology.Config{Prefix: string(s.Prefix),
			QueueType: topology.QueueType(s.Inventory.Queues[w.Dead.Queue].Type)}
		for _, t := range w.Tiers { // those of a group are the last
			if t.Retired {
				continue
			}
			if t.Group != config.TierGroup {
				config.TierGroup, config.Tiers = t.Group, nil
			}
			config.Tiers = append(config.Tiers, backoff.Tier(t.Delay))
		}
		first := s.Inventory.Queues[naming.PartitionQueue(w.Name, 0)]
		if limit, _ := first.Arguments[queuearg.DeliveryLimit].(int64); limit > 0 { // it has both, as topology sets it
			config.Partitions, config.Prefetch = int(limit/1_000_000), int(limit%1_000_000)
		}
		one := deadletter.Wanted{Topology: config, Queue: topology.Queue{
			Name: w.Name, Durable: queue.Durable, Arguments: amqp091.Table(queue.Arguments),
		}, AllowUnprotectedQuorum: true}
		if exists && topology.New(one.Topology, one.Queue).Validate() == nil {
			all = append(all, one)
		}
	}
	return all
}

// letters returns the queues in which letters stay.
func (s *Snapshot) letters() []string {
	dead := each.Of(s.works(), func(w letters.WorkQueue) string { return w.Dead.Queue })
	return append(dead, s.Prefix.Orphans())
}

// own returns the queues of this prefix.
func (s *Snapshot) own() (names []string) {
	for _, w := range s.works() {
		names = append(names, w.Name, w.Inbox.Queue)
		names = append(names, each.Of(w.Tiers, func(t letters.Tier) string { return t.Queue })...)
	}
	return append(names, s.letters()...)
}

// command is a command of wmretry with the prefix of this one.
func (s *Snapshot) command(words ...string) string { return workqueue.Command(s.Prefix, words...) }

const (
	healthWithin = 10 * time.Second // for the answer of an app
	healthBytes  = 8 << 20          // at most, of an answer
)

// App is the health of an app, as its endpoint shows it.
type App struct {
	URL    string            `json:"url"` // without the query, which can be a secret
	Health *retry.Health     `json:"health"`
	Error  string            `json:"error,omitzero"` // why Health is missing
	Ahead  *management.Ahead `json:"ahead"`
}

// ValidateEndpoint reports what is wrong with the address of an app's health. The error contains no part of it.
func ValidateEndpoint(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return errors.New("the address must be like http://host:8080/health (or https://), without a user and a " +
			"password, which other users of this machine can read")
	}
	return nil
}

// ask reads the health of an app.
func ask(ctx context.Context, address string) App {
	u, _ := url.Parse(address)
	app := App{URL: (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()}
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	if err := app.read(ctx, address); err != nil {
		var of *url.Error // it repeats the address
		if errors.As(err, &of) {
			err = of.Err
		}
		app.Error = err.Error()
	}
	return app
}

// client follows no redirect: it would send the address, which can be a secret, to another host.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (a *App) read(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	sent := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	a.Ahead = management.AheadOf(response.Header, sent, time.Now())
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	var answer struct {
		retry.Health
		Subscriptions *[]retry.SubscriptionHealth
	}
	err = json.NewDecoder(io.LimitReader(response.Body, healthBytes)).Decode(&answer)
	if err != nil || answer.Subscriptions == nil {
		return errors.New("the answer is not the JSON of a retry.Health with handlers: docs/operations.md#health")
	}
	a.Health = &answer.Health
	a.Health.Subscriptions = *answer.Subscriptions
	for i := range a.Health.Subscriptions {
		sub := &a.Health.Subscriptions[i]
		clear(sub.Blocked) // keys can be personal data
		states := slices.Collect(maps.Values(sub.Keys))
		clear(sub.Keys)
		for number, state := range states {
			sub.Keys[strconv.Itoa(number+1)] = state
		}
	}
	return nil
}
