package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// onModel is the app's own configuration of a broker.
func onModel(broker *model.Broker) amqp.Config {
	own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
	own.Connection.AmqpConfig = &amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}
	return own
}

// handling runs a router with handlers until it is stopped.
func handling(t *testing.T, add func(*message.Router)) (stop func()) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	add(router)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	return func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	}
}

func connected(
	t *testing.T, broker *model.Broker, logger watermill.LoggerAdapter, change ...func(*config.Config),
) retry.Connection {
	c := config.Config{AMQP: onModel(broker), Policy: retry.Policy{Schedule: planOf(1).schedule}}
	for _, change := range change {
		change(&c)
	}
	connection, err := config.Connect(c, logger)
	require.NoError(t, err)
	return connection
}

func consume(t *testing.T, rabbit retry.Connection, queue string) (end func() error) {
	s, err := rabbit.Subscriber(queue)
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), queue)
	require.NoError(t, err)
	return s.Close
}

// failsFirst is a handler whose first call with each message fails.
func failsFirst(calls *testapp.Ledger) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if calls.Add(msg.UUID) == 1 {
			return errOrdered
		}
		return nil
	}
}

// A queue that is not consumed is not bound: an operator can remove it while the app goes on. The bindings of one that is
// consumed come back with the next check, as often as they are gone. What came meanwhile is an orphan.
func TestBindingsComeBackWhileTheirQueueIsConsumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		rabbit := connected(t, broker, watermill.NopLogger{})
		defer rabbit.Close()
		require.NoError(t, consume(t, rabbit, "removed")())
		consume(t, rabbit, "kept")
		time.Sleep(time.Hour) // a check of the first queue that ran during its Close is over
		comesBack := func(queue string) bool {
			require.Equal(t, 1, broker.Publish("retry.return", "1s."+queue, amqp091.Publishing{}), "no message is lost")
			return broker.PurgeQueue("retry.orphans") == 0
		}
		for range 2 {
			for _, queue := range []string{"removed", "kept"} {
				broker.Unbind(queue, "retry.return")
				broker.Unbind(queue, "retry.return.any")
			}
			assert.False(t, comesBack("kept"))
			time.Sleep(time.Minute)
			assert.True(t, comesBack("kept"))
			assert.False(t, comesBack("removed"))
		}
	})
}

// A broker forwards 32 messages of a tier at the same time. Of more that are due at once, each that has come makes room.
func TestMoreMessagesAreDueAtOnceThanABrokerForwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		rabbit := connected(t, broker, watermill.NopLogger{})
		defer rabbit.Close()
		consume(t, rabbit, "orders")
		const many = 100
		for range many {
			require.Equal(t, 1, broker.Publish("retry", "1s.orders", amqp091.Publishing{}))
		}
		require.Len(t, broker.Messages("orders.retry.1s"), many)
		time.Sleep(2 * time.Second)
		assert.Zero(t, len(broker.Messages("orders.retry.1s")))
		assert.Equal(t, many, len(broker.Messages("orders")))
	})
}

// An app that declares its topology logs orphans, and one that only verifies it: once, until there are none.
func TestTheFirstOrphanIsLogged(t *testing.T) {
	for name, verifyOnly := range map[string]bool{"declares": false, "verifies": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := model.New(model.Config{})
				defer broker.Stop()
				if verifyOnly {
					declaring := connected(t, broker, watermill.NopLogger{})
					consume(t, declaring, "orders")
					require.NoError(t, declaring.Close())
				}
				log := &testapp.Log{}
				rabbit := connected(t, broker, log, func(c *config.Config) { c.VerifyOnly = verifyOnly })
				defer rabbit.Close()
				consume(t, rabbit, "orders")
				const line = "orphans are in the queue"
				for times := range 2 {
					assert.Equal(t, times, log.Count(line))
					broker.Publish("retry.return", "1s.nowhere", amqp091.Publishing{})
					time.Sleep(time.Minute)
					assert.Equal(t, times+1, log.Count(line), "it has looked several times")
					assert.Equal(t, 1, broker.PurgeQueue("retry.orphans"))
					time.Sleep(time.Minute)
				}
				assert.Contains(t, fmt.Sprint(log.Lines(line)), "`wmretry dead redrive retry.orphans`")
			})
		})
	}
}

// bound lists the bindings of queues, each with its exchange before its queue.
func bound(t *testing.T, broker *model.Broker) (all []string) {
	answer := httptest.NewRecorder()
	broker.Management().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/api/bindings/vhost", nil))
	var bindings []struct{ Source, Destination string }
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&bindings))
	for _, b := range bindings {
		all = append(all, b.Source+" "+b.Destination)
	}
	return all
}

// What a message waits for on the tier of a group is deleted meanwhile: each comes back once. A message that is due
// before the return exchange exists again comes three minutes later, when the broker tries to forward it again.
func TestPartsOfAGroupAreDeletedWhileMessagesWait(t *testing.T) {
	for name, remove := range map[string]func(*model.Broker){
		"inbox":              func(broker *model.Broker) { broker.DeleteQueue("orders.retry.inbox", false) },
		"way from the inbox": func(broker *model.Broker) { broker.Unbind("orders", "retry.return") },
		"all return exchanges": func(broker *model.Broker) {
			for _, exchange := range []string{"shop.retry.return", "retry.return", "retry.return.any"} {
				broker.DeleteExchange(exchange)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := model.New(model.Config{})
				defer broker.Stop()
				rabbit := connected(t, broker, watermill.NopLogger{}, func(c *config.Config) {
					c.Policy = retry.Policy{Schedule: backoff.Constant(10*time.Second, 1), TierGroup: "shop"}
					c.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "classic"}
				})
				calls := testapp.NewLedger()
				stop := handling(t, func(router *message.Router) {
					rabbit.AddConsumerHandler(router, "billing", "orders", failsFirst(calls))
				})
				want := map[string]int{}
				publish := func(times int) {
					for i := range 10 {
						id := fmt.Sprint(times, " ", i)
						want[id] = 2
						require.NoError(t, rabbit.Publisher().Publish("orders", message.NewMessage(id, nil)))
					}
				}
				publish(1)
				time.Sleep(time.Second)
				require.Len(t, broker.Messages("shop.retry.10s"), 10)
				remove(broker)
				time.Sleep(4 * time.Minute)
				assert.Equal(t, want, calls.Counts())
				assert.Subset(t, bound(t, broker), []string{"shop.retry.return orders", "shop.retry.return orders.retry.inbox",
					"retry.return orders"}, "all is bound again")
				publish(2)
				time.Sleep(time.Minute)
				assert.Equal(t, want, calls.Counts())
				assert.Empty(t, broker.Messages("retry.orphans"))
				assert.NoError(t, rabbit.Health().Ready())
				stop()
				require.NoError(t, rabbit.Close())
			})
		})
	}
}

// Tiers that an operator deletes are declared again by the next copies: those of each schedule of a queue, and those of a
// group.
func TestDeletedTiersAreDeclaredAgain(t *testing.T) {
	for owner, group := range map[string]string{"orders": "", "shop": "shop"} {
		t.Run(owner, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker := model.New(model.Config{})
				defer broker.Stop()
				log := &testapp.Log{}
				rabbit := connected(t, broker, log)
				calls := testapp.NewLedger()
				delays := backoff.Schedule{time.Second, 2 * time.Second}
				stop := handling(t, func(router *message.Router) {
					for i := range delays {
						own := retry.Policy{Schedule: delays[i : i+1], TierGroup: group, ExtraTiers: delays}
						rabbit.AddConsumerHandler(router, fmt.Sprint("billing ", i), "orders", failsFirst(calls),
							retry.Options{Policy: &own})
					}
				})
				tiers := []string{owner + ".retry.1s", owner + ".retry.2s"}
				for _, tier := range tiers {
					require.True(t, broker.DeleteQueue(tier, false), tier)
				}
				want := map[string]int{}
				for i := range 40 { // each handler gets some of them
					want[fmt.Sprint(i)] = 2
					require.NoError(t, rabbit.Publisher().Publish("orders", message.NewMessage(fmt.Sprint(i), nil)))
				}
				time.Sleep(time.Minute)
				assert.Equal(t, want, calls.Counts())
				assert.Subset(t, broker.Queues(), tiers)
				assert.Empty(t, log.Lines("holding"))
				stop()
				require.NoError(t, rabbit.Close())
			})
		})
	}
}
