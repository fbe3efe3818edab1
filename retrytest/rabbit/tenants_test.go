package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest/rabbit"
)

// A saas is an app with 20 tenants. A call takes 100 ms, but for the tenant that is sick.
type saas struct {
	t      *testing.T
	broker *rabbit.Broker
	conn   retry.Connection
	sick   func() error // what tenant 7 does; nil: it is healthy

	mu      sync.Mutex
	calls   map[string]int           // by tenant
	done    map[string]int           // by tenant
	late    []time.Duration          // of the others: from publish to the end of the call
	waiting map[string]time.Time     // since when, by UUID
	at      map[string]time.Duration // the last message of a tenant that was handled, since the start
	began   time.Time
}

const (
	tenants    = 20
	sickTenant = "7" // it sends four messages a second, and each other one a message
)

func startSaas(t *testing.T) *saas {
	s := &saas{
		t: t, calls: map[string]int{}, done: map[string]int{}, waiting: map[string]time.Time{},
		at: map[string]time.Duration{}, began: time.Now(),
	}
	s.broker, s.conn = startTenants(t, backoff.Exponential(time.Second, 5, 5), s.deliver)
	return s
}

// startTenants starts an app with a breaker by tenant.
func startTenants(
	t *testing.T, schedule backoff.Schedule, handler message.NoPublishHandlerFunc, options ...retry.Options,
) (*rabbit.Broker, retry.Connection) {
	broker := rabbit.New(t)
	own := amqp.NewDurableQueueConfig(rabbit.URI)
	own.Connection.AmqpConfig = broker.AmqpConfig()
	policy := retry.Policy{Schedule: schedule, Breaker: &retry.Breaker{Key: tenantOf}}
	conn, err := config.Connect(config.Config{AMQP: own, Policy: policy}, nil)
	require.NoError(t, err)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	conn.AddConsumerHandler(router, "deliver", "webhooks", handler, options...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, errors.Join(<-ended, conn.Close()))
	})
	return broker, conn
}

func tenantOf(msg *message.Message) string { return msg.Metadata.Get("tenant") }

func (s *saas) deliver(msg *message.Message) error {
	tenant := tenantOf(msg)
	s.mu.Lock()
	s.calls[tenant]++
	sick := s.sick
	s.mu.Unlock()
	if tenant == sickTenant && sick != nil {
		if err := sick(); err != nil {
			return err
		}
	} else {
		time.Sleep(100 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[tenant]++
	s.at[tenant] = time.Since(s.began)
	if tenant != sickTenant {
		s.late = append(s.late, time.Since(s.waiting[msg.UUID]))
	}
	return nil
}

// send sends for some time.
func (s *saas) send(over time.Duration) {
	const rounds = 4 // a second
	for round := range rounds * int(over/time.Second) {
		for tenant := range tenants {
			if name := fmt.Sprint(tenant); name == sickTenant || tenant%rounds == round%rounds {
				msg := message.NewMessage(fmt.Sprintf("%v-%d", time.Since(s.began), tenant), nil)
				msg.Metadata.Set("tenant", name)
				s.mu.Lock()
				s.waiting[msg.UUID] = time.Now()
				s.mu.Unlock()
				require.NoError(s.t, s.conn.Publisher().Publish("webhooks", msg))
			}
			time.Sleep(time.Second / rounds / tenants)
		}
	}
}

// begin makes tenant 7 sick, or healthy again.
func (s *saas) begin(sick func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sick, s.late = sick, nil
}

func (s *saas) tries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[sickTenant]
}

func (s *saas) p99() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.late)
	return s.late[len(s.late)*99/100]
}

// sickFor makes tenant 7 sick for five minutes, and returns how often it was tried after the first one.
func (s *saas) sickFor(t *testing.T, how func() error) (tried int) {
	s.send(time.Minute)
	control := s.p99()
	s.begin(how)
	s.send(time.Minute)
	before := s.tries()
	s.send(4 * time.Minute)
	tried = s.tries() - before
	assert.LessOrEqual(t, s.p99(), control*11/10, "the others, from the first moment on")
	return tried
}

// recovers checks that all messages of tenant 7 are handled once it is healthy again.
func (s *saas) recovers(t *testing.T) {
	s.begin(nil)
	healthy := time.Since(s.began)
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Equal(t, 4*6*60, s.done[sickTenant])
	assert.Empty(t, s.broker.Messages("webhooks.dead"))
	const (
		// a pause that has just begun, with its probe; then those that asked at its end come back after one more
		pauses = 2*30*time.Second + 10*time.Second
		share  = 4 * 5 * 60 * 100 * time.Millisecond / 8
	)
	assert.LessOrEqual(t, s.at[sickTenant]-healthy, pauses+share*12/10)
}

func TestATenantThatFailsDoesNotSlowTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSaas(t)
		tried := s.sickFor(t, func() error { time.Sleep(5 * time.Second); return errors.New("no answer") })
		assert.LessOrEqual(t, tried, 4*4*60/100, "one of a hundred")
		s.recovers(t)
	})
}

func TestATenantThatHangsDoesNotSlowTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSaas(t)
		s.sickFor(t, func() error { time.Sleep(30 * time.Second); return nil })
		s.recovers(t)
	})
}

func orderOf(msg *message.Message) string { return tenantOf(msg) + "/" + msg.Metadata.Get("order") }

// A tenant that pauses keeps its messages in their partitions and in their order.
func TestATenantWaitsInPlaceWithPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		healthy := time.Now().Add(5 * time.Minute)
		handled := map[string][]string{} // by tenant and order
		tried := 0                       // of the sick tenant, when it was healthy again
		deliver := func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if tenantOf(msg) == sickTenant && time.Now().Before(healthy) {
				tried++
				return errors.New("no answer")
			}
			handled[orderOf(msg)] = append(handled[orderOf(msg)], msg.UUID)
			return nil
		}
		broker, conn := startTenants(t, backoff.Constant(time.Second, 100), deliver,
			retry.Options{Order: retry.Order{Key: orderOf, Partitions: 2}})

		const each = 20
		want := map[string][]string{}
		for i := range each {
			for tenant := range 10 {
				for order := range 3 {
					of := fmt.Sprintf("%d/%d", tenant, order)
					msg := message.NewMessage(fmt.Sprintf("%s-%d", of, i), nil)
					msg.Metadata.Set("tenant", fmt.Sprint(tenant))
					msg.Metadata.Set("order", fmt.Sprint(order))
					want[of] = append(want[of], msg.UUID)
					require.NoError(t, conn.Publisher().Publish("webhooks", msg))
				}
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		mu.Lock()
		for of, all := range want {
			if !strings.HasPrefix(of, sickTenant+"/") {
				assert.Equal(t, all, handled[of], "the others go on")
			}
		}
		mu.Unlock()
		assert.Equal(t, "failing", conn.Health().Subscriptions[0].Keys[sickTenant].Paused)
		for _, queue := range broker.Queues() {
			assert.NotContains(t, queue, ".retry.", "nothing moves to a tier")
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, want, handled, "all, in their order")
		assert.Less(t, tried, 40, "probes")
	})
}
