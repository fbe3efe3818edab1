package ordered

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dispatch"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/socket"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

const consumerTimeout = time.Minute

// partitioned has two partitions: the part of a UUID before "-" is its key, and the last byte of the key the partition.
type partitioned struct{}

func (partitioned) Queues(work string) (partitions []string, members string) {
	return []string{work + ".order.0", work + ".order.1"}, work + ".order.members"
}

func (partitioned) Route(
	topic string, msg *message.Message, _ amqp091.Delivery,
) (exchange, key string, publishing amqp091.Publishing, err error) {
	if msg.UUID == "unroutable" {
		return "", "", publishing, errors.New("no route")
	}
	of := keyOf(msg)
	return "queue.order", of[len(of)-1:], amqp091.Publishing{Body: []byte(msg.UUID)}, nil
}

// An ordered scene is a subscription with partitions, without their goroutines. Its test opens the sessions.
type orderedScene struct {
	*subscription
	t       *testing.T
	version string // of the broker
	stop    func()
}

func newOrdered(t *testing.T) *orderedScene {
	t.Helper()
	return newOrderedOf(t, app{}, partitioned{})
}

func newOrderedOf(t *testing.T, handler subscriber.Handler, partitions Partitions) *orderedScene {
	t.Helper()
	config := Config{Config: subscriber.Config{Concurrency: 4, Prefetch: 16, OrderKey: keyOf},
		ConsumerTimeout: consumerTimeout, Partitions: partitions}
	s := NewSubscriber(&Connection{Connection: &subscriber.Connection{}}, handler, config, watermill.NopLogger{})
	ctx, stop := context.WithCancel(msgctx.NewContext(t.Context(), &msgctx.Subscription{}))
	o, err := s.begin(ctx, "topic")
	require.NoError(t, err)
	go o.Run()
	o.balanced = time.Now().Add(time.Hour) // there is no broker that counts the processes
	return &orderedScene{o, t, "4.0.5", stop}
}

// An app consumes the queue "queue". Its messages are their UUIDs.
type app struct{ subscriber.Handler }

func (app) QueueOf(string) (string, error)                 { return "queue", nil }
func (app) Nacked(*message.Message, amqp091.Delivery) bool { return false }
func (app) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return message.NewMessage(string(d.Body), nil), nil
}

func keyOf(msg *message.Message) string { key, _, _ := strings.Cut(msg.UUID, "-"); return key }

// An orderedSession is a session on a channel whose test plays the broker.
type orderedSession struct {
	*session
	channel *fakeChannel
}

// fakeChannel is the channel of a session, and its mover.
type fakeChannel struct {
	*channeltest.Channel
	mu    sync.Mutex
	sent  []string
	waits map[string]*fakeConfirmation // by the message
	fails error
}

type fakeConfirmation struct {
	done  chan struct{}
	acked bool
}

func (c *fakeConfirmation) Done() <-chan struct{} { return c.done }
func (c *fakeConfirmation) Acked() bool           { return c.acked }

func (c *fakeConfirmation) confirm(ack bool) {
	c.acked = ack
	close(c.done)
}

func (c *fakeChannel) publish(
	_ context.Context, exchange, key string, mandatory bool, publishing amqp091.Publishing,
) (confirmation, error) {
	if !mandatory {
		panic("not mandatory: lost where no queue gets it")
	}
	if c.fails != nil {
		return nil, c.fails
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	uuid := string(publishing.Body)
	confirm := &fakeConfirmation{done: make(chan struct{})}
	c.waits[uuid] = confirm
	c.sent = append(c.sent, fmt.Sprint(uuid, " to ", exchange, " ", key))
	return confirm, nil
}

// Close is also that of the broker: amqp091-go then nacks what is not confirmed.
func (c *fakeChannel) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.IsClosed() {
		return nil
	}
	_ = c.Channel.Close()
	for _, confirm := range c.waits {
		select {
		case <-confirm.done:
		default:
			confirm.confirm(false)
		}
	}
	return nil
}

// open opens a session of a partition. -1 is the intake.
func (o *orderedScene) open(number int) *orderedSession {
	p := o.partitions[number+1]
	channel := &fakeChannel{Channel: channeltest.New(100), waits: map[string]*fakeConfirmation{}}
	client := &amqp091.Connection{Properties: amqp091.Table{"version": o.version}}
	var moving *intake
	if number < 0 {
		moving = newIntake(channel, make(chan amqp091.Return, 16))
	}
	n, err := p.on(&wire.Connection{Client: client, Socket: socket.New(nil, time.Second)}, channel, moving)
	require.NoError(o.t, err)
	n.Feed()
	return &orderedSession{n, channel}
}

// deliver sends deliveries for the first time, and again those that came before.
func (o *orderedScene) deliver(n *orderedSession, uuids ...string) { o.send(n, false, uuids...) }
func (o *orderedScene) again(n *orderedSession, uuids ...string)   { o.send(n, true, uuids...) }

func (o *orderedScene) send(n *orderedSession, again bool, uuids ...string) {
	for _, uuid := range uuids {
		delivery := amqp091.Delivery{DeliveryTag: n.ages.arrived() + 1, Body: []byte(uuid), Redelivered: again}
		o.Do(func() { n.receive(delivery) })
	}
}

// take receives all messages that are handed out now.
func (o *orderedScene) take() (uuids []string, messages []*message.Message) {
	for {
		synctest.Wait()
		select {
		case msg, open := <-o.Out:
			if !open {
				return uuids, messages
			}
			uuids, messages = append(uuids, msg.UUID), append(messages, msg)
		default:
			return uuids, messages
		}
	}
}

func (o *orderedScene) takeOne(uuid string) *message.Message {
	o.t.Helper()
	got, messages := o.take()
	require.Equal(o.t, []string{uuid}, got)
	return messages[0]
}

// keep is the ack of a message that waits.
func keep(msg *message.Message, again msgctx.Again) {
	again.Metadata = maps.Clone(msg.Metadata)
	if again.Metadata == nil {
		again.Metadata = message.Metadata{}
	}
	msgctx.Lookup(msg).Again = &again
	msg.Ack()
	synctest.Wait()
}

func failed(msg *message.Message, failures int) {
	retry.Record{Failures: failures, Topic: "topic"}.Write(msg.Metadata)
}

func failuresOf(msg *message.Message) int {
	record, _ := retry.ReadRecord(msg.Metadata)
	return record.Failures
}

// settled returns the deliveries that have been acked.
func (n *orderedSession) settled() []string {
	synctest.Wait()
	return n.channel.Fresh()
}

// rewind ends a session, and returns how long that took.
func (o *orderedScene) rewind(n *orderedSession, reason error) time.Duration {
	began := time.Now()
	n.Retire(reason)
	return time.Since(began)
}

// close ends the subscription, whose messages have to be settled. One that is about to be handed out may still be.
func (o *orderedScene) close() {
	o.stop()
	for msg := range o.Out {
		msg.Nack()
	}
	for _, p := range o.partitions {
		if n := p.current.Load(); n != nil {
			n.Retire(nil)
		}
	}
	o.Workers.Wait()
	o.Quit()
}

func ordered1(t *testing.T, f func(t *testing.T, o *orderedScene)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOrdered(t)
		f(t, o)
		o.close()
	})
}

// inPartition is ordered1 with a session of partition 0.
func inPartition(t *testing.T, f func(t *testing.T, o *orderedScene, n *orderedSession)) {
	ordered1(t, func(t *testing.T, o *orderedScene) { f(t, o, o.open(0)) })
}

func TestAMessageIsAckedWhenItsMoveIsConfirmed(t *testing.T) {
	ordered1(t, func(t *testing.T, o *orderedScene) {
		n := o.open(-1)
		o.deliver(n, "a0-1", "a0-2", "b1-1")
		synctest.Wait()
		assert.ElementsMatch(t, []string{"a0-1 to queue.order 0", "b1-1 to queue.order 1"}, n.channel.sent,
			"the next one of a key waits for its confirm")
		assert.Empty(t, n.settled(), "nothing is confirmed")
		n.channel.waits["a0-1"].confirm(true)
		assert.Equal(t, []string{"ack 1"}, n.settled())
		n.channel.waits["a0-2"].confirm(true)
		n.channel.waits["b1-1"].confirm(true)
		assert.ElementsMatch(t, []string{"ack 2", "ack 3"}, n.settled())
		assert.False(t, n.Gone().Err() != nil)
	})
}

func TestAMessageThatIsNotMovedIsNotAcked(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		uuid   string
		broker func(n *orderedSession)
		reason error // why the session ends; nil: it is closed
	}{
		"nothing is confirmed": {"a0-1", func(n *orderedSession) { _ = n.channel.Close() }, nil},
		"a nack":               {"a0-1", func(n *orderedSession) { n.channel.waits["a0-1"].confirm(false) }, errRefused},
		"no queue": {"a0-1", func(n *orderedSession) {
			n.intake.returns <- amqp091.Return{RoutingKey: "0"}
			n.channel.waits["a0-1"].confirm(true)
		}, errReturned},
		"no queue, and a nack": {"a0-1", func(n *orderedSession) {
			n.intake.returns <- amqp091.Return{RoutingKey: "0"}
			n.channel.waits["a0-1"].confirm(false)
		}, errReturned},
		"it cannot be sent": {"a0-1", nil, errNacked},
		"no route":          {"unroutable", nil, errNacked},
	} {
		t.Run(name, func(t *testing.T) {
			ordered1(t, func(t *testing.T, o *orderedScene) {
				n := o.open(-1)
				if row.broker == nil {
					n.channel.fails = amqp091.ErrClosed
				}
				o.deliver(n, row.uuid, row.uuid)
				synctest.Wait()
				if row.broker != nil {
					row.broker(n)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Empty(t, n.settled())
				assert.LessOrEqual(t, len(n.channel.sent), 1, "the next one of its key is not moved")
				if row.reason == nil {
					assert.True(t, n.Lost.Err() != nil)
				} else {
					require.ErrorIs(t, n.Reason(), row.reason)
				}
				assert.True(t, n.Gone().Err() != nil, "all that is left goes back")
			})
		})
	}
}

func TestAMessageWhoseOwnMoveIsRoutedIsAcked(t *testing.T) {
	ordered1(t, func(t *testing.T, o *orderedScene) {
		n := o.open(-1)
		o.deliver(n, "a0-1", "b1-1", "c1-1", "d0-1")
		synctest.Wait()
		n.intake.returns <- amqp091.Return{RoutingKey: "0"} // partition 0 has no binding
		n.channel.waits["a0-1"].confirm(true)
		synctest.Wait()
		n.channel.waits["b1-1"].confirm(true)
		n.channel.waits["c1-1"].confirm(true)
		n.intake.returns <- amqp091.Return{RoutingKey: "0"}
		n.channel.waits["d0-1"].confirm(true)
		assert.ElementsMatch(t, []string{"ack 2", "ack 3"}, n.settled())
		reason := n.Reason()
		require.ErrorIs(t, reason, errReturned)
		assert.ErrorContains(t, reason, `exchange "queue.order" has no binding with the routing key "0"`)
	})
}

func TestAMoveThatIsNotConfirmedGoesBackAtOnceInAnAlarm(t *testing.T) {
	for name, blocked := range map[string]bool{"an alarm": true, "a slow queue": false} {
		t.Run(name, func(t *testing.T) {
			ordered1(t, func(t *testing.T, o *orderedScene) {
				n := o.open(-1)
				o.deliver(n, "a0-1")
				synctest.Wait()
				n.Connection.Blocked.Store(blocked)
				took := o.rewind(n, nil)
				if blocked {
					assert.Zero(t, took)
				} else {
					assert.Equal(t, channel.AnswerTimeout, took)
				}
				assert.Empty(t, n.settled())
				o.Workers.Wait()
			})
		})
	}
}

func TestAPauseEndsTheIntakeAfterAnAlarm(t *testing.T) {
	ordered1(t, func(t *testing.T, o *orderedScene) {
		n := o.open(-1)
		o.deliver(n, "a0-1")
		synctest.Wait()
		n.Connection.Blocked.Store(true)
		o.Limit(0)
		began := time.Now()
		time.AfterFunc(consumerTimeout/3, func() {
			n.Connection.Blocked.Store(false)
			n.channel.waits["a0-1"].confirm(true)
		})
		o.rewind(n, n.Keep())
		assert.GreaterOrEqual(t, time.Since(began), consumerTimeout/3)
		assert.Less(t, time.Since(began), consumerTimeout/2)
		assert.Equal(t, []string{"ack 1"}, n.settled(), "it is not moved twice")
	})
}

func TestAWaitingMessageStillWaitsAfterARewind(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1", "a0-2")
		msg := o.takeOne("a0-1")
		failed(msg, 2)
		began := time.Now()
		keep(msg, msgctx.Again{Due: began.Add(10 * time.Second)})
		got, _ := o.take()
		assert.Empty(t, got, "its key is taken")
		time.Sleep(3 * time.Second)
		assert.Zero(t, o.rewind(n, errWaits))
		n = o.open(0)
		o.again(n, "a0-1", "a0-2")
		time.Sleep(7*time.Second - 1)
		got, _ = o.take()
		assert.Empty(t, got)
		time.Sleep(time.Nanosecond)
		msg = o.takeOne("a0-1")
		assert.Equal(t, 2, failuresOf(msg), "it goes on with its failures")
		msg.Ack()
		o.takeOne("a0-2").Ack()
		assert.Equal(t, []string{"ack 1", "ack 2"}, n.settled())
		synctest.Wait()
		assert.Empty(t, n.of.kept)
	})
}

func TestTheEndOfASessionWaitsForCallsAndNotForHolds(t *testing.T) {
	for name, reason := range map[string]error{"another process": errBalance, "a pause": nil} {
		t.Run(name, func(t *testing.T) {
			inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
				o.deliver(n, "a0-1", "b0-1")
				got, messages := o.take()
				require.Equal(t, []string{"a0-1", "b0-1"}, got)
				go func() { // it is held after its call
					select {
					case <-msgctx.Lookup(messages[0]).Leaving:
					case <-time.After(30 * time.Second):
					}
					messages[0].Nack()
				}()
				go func() { // a call
					time.Sleep(10 * time.Second)
					messages[1].Ack()
				}()
				took := o.rewind(n, reason)
				if reason == nil {
					assert.GreaterOrEqual(t, took, 30*time.Second, "what is held may be the reason of the pause")
				} else {
					assert.Equal(t, 10*time.Second, took)
				}
				assert.Equal(t, []string{"ack 2"}, n.settled())
			})
		})
	}
}

func TestTheFailureOfACallThatOutlivesItsDeliveryIsThatOfTheNextDelivery(t *testing.T) {
	t.Parallel()
	late := errors.New("too late")
	fails := func(msg *message.Message) { // as the retry middleware does
		msgctx.Lookup(msg).Outlived = late
		msg.Nack()
	}
	for name, row := range map[string]struct {
		ends func(msg *message.Message)
		want error
	}{
		"it fails":    {fails, late},
		"it succeeds": {func(msg *message.Message) { msg.Ack() }, msgctx.ErrOutlived},
	} {
		for when, after := range map[string]time.Duration{
			"at the end of its context": consumerTimeout * 9 / 10, "after its redelivery": 2 * consumerTimeout,
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
					o.deliver(n, "a0-1", "a0-2")
					msg := o.takeOne("a0-1")
					failed(msg, 7) // a change by the handler
					go func() {
						<-msg.Context().Done()
						assert.ErrorIs(t, context.Cause(msgctx.Lookup(msg)), msgctx.ErrOutlived)
						if after > consumerTimeout {
							time.Sleep(consumerTimeout)
						} else if row.want == msgctx.ErrOutlived {
							time.Sleep(2 * subscriber.GiveUpAfter)
						}
						row.ends(msg)
					}()
					assert.LessOrEqual(t, o.rewind(n, errWaits), consumerTimeout)
					n = o.open(0)
					o.again(n, "a0-1", "a0-2")
					time.Sleep(2 * consumerTimeout)
					msg = o.takeOne("a0-1")
					assert.Equal(t, row.want, msgctx.Lookup(msg).Outlived)
					assert.Zero(t, failuresOf(msg))
					failed(msg, 1)
					keep(msg, msgctx.Again{Due: time.Now()})
					time.Sleep(time.Nanosecond)
					msg = o.takeOne("a0-1")
					assert.NoError(t, msgctx.Lookup(msg).Outlived, "it counts once")
					assert.Equal(t, 1, failuresOf(msg))
					msg.Ack()
					o.takeOne("a0-2").Ack()
					synctest.Wait()
					assert.Empty(t, n.of.kept)
				})
			})
		}
	}
}

// A rule of the app can give a message back because of such a failure.
func TestTheFailureOfACallThatARuleGivesBackIsForgotten(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1")
		late := errors.New("too late")
		for _, kept := range []error{nil, late, nil} {
			msg := o.takeOne("a0-1")
			assert.Equal(t, kept, msgctx.Lookup(msg).Outlived)
			reason := errNacked
			if kept == nil {
				reason = errWaits
				go func() {
					<-msg.Context().Done()
					msgctx.Lookup(msg).Outlived = late // as the retry middleware does
					msg.Nack()
				}()
			} else {
				msgctx.Lookup(msg).Outlived = nil
				msg.Nack()
				synctest.Wait()
			}
			o.rewind(n, reason)
			n = o.open(0)
			o.again(n, "a0-1")
			time.Sleep(2 * consumerTimeout)
		}
		o.takeOne("a0-1").Ack()
	})
}

// The loss of a connection is not the fault of a call.
func TestACallThatLosesItsConnectionHasNoFailure(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1")
		msg := o.takeOne("a0-1")
		_ = n.channel.Close()
		synctest.Wait()
		o.rewind(n, errors.New("the channel was closed"))
		<-msg.Context().Done()
		assert.ErrorIs(t, context.Cause(msgctx.Lookup(msg)), errLeft)
		msg.Ack()
		n = o.open(0)
		o.again(n, "a0-1")
		msg = o.takeOne("a0-1")
		assert.NoError(t, msgctx.Lookup(msg).Outlived)
		msg.Ack()
	})
}

func TestTheDecisionOfAnOperatorIsKeptUntilItIsDone(t *testing.T) {
	for name, skip := range map[string]bool{"skip": true, "retry": false} {
		t.Run(name, func(t *testing.T) {
			ordered1(t, func(t *testing.T, o *orderedScene) {
				decide := func(key string) int {
					decided := make(chan int, 1)
					o.Do(func() { decided <- o.partitions[1].decide(key, skip) })
					return <-decided
				}
				n := o.open(0)
				o.deliver(n, "a0-1", "a0-2")
				msg := o.takeOne("a0-1")
				assert.False(t, msgctx.Lookup(msg).GivenUp)
				failed(msg, 3)
				keep(msg, msgctx.Again{Blocked: true})
				time.Sleep(time.Hour)
				got, _ := o.take()
				require.Empty(t, got)
				require.Equal(t, 1, decide("a0"))
				assert.Zero(t, decide("a0"), "it is not blocked any more")
				for range 3 { // its dead letter cannot be published
					msg = o.takeOne("a0-1")
					assert.Equal(t, skip, msgctx.Lookup(msg).GivenUp)
					assert.Equal(t, map[bool]int{true: 3}[skip], failuresOf(msg))
					msg.Nack()
					time.Sleep(time.Minute)
					assert.Zero(t, o.rewind(n, errNacked))
					if skip {
						time.Sleep(2 * keptFor) // a long pause
					}
					n = o.open(0)
					o.again(n, "a0-1", "a0-2")
				}
				msg = o.takeOne("a0-1")
				assert.Equal(t, skip, msgctx.Lookup(msg).GivenUp)
				msg.Ack()
				msg = o.takeOne("a0-2")
				assert.False(t, msgctx.Lookup(msg).GivenUp)
				msg.Ack()
				synctest.Wait()
				assert.Empty(t, n.of.kept)
			})
		})
	}
}

// What the broker may take back out of order after the consumer timeout, the process gives back before.
func TestAPartitionGoesBackBeforeTheConsumerTimeout(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		time.Sleep(consumerTimeout)
		o.deliver(n, "a0-1", "b0-1")
		_, messages := o.take()
		messages[0].Ack()
		failed(messages[1], 1)
		keep(messages[1], msgctx.Again{Due: time.Now().Add(time.Hour)})
		began := time.Now()
		time.AfterFunc(2*consumerTimeout, o.stop)
		require.ErrorIs(t, n.Keep(), errWaits)
		assert.Greater(t, time.Since(began), consumerTimeout/2)
		assert.Less(t, time.Since(began), consumerTimeout*2/3)
		o.rewind(n, errWaits)
	})
}

func TestAPartitionWhoseMessagesAreAckedDoesNotGoBack(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		for i := range 4 {
			o.deliver(n, fmt.Sprint("a0-", i))
			o.takeOne(fmt.Sprint("a0-", i)).Ack()
			time.Sleep(consumerTimeout / 3)
			assert.Less(t, n.waited(), consumerTimeout/2)
		}
		time.AfterFunc(2*consumerTimeout, o.stop)
		require.NoError(t, n.Keep())
	})
}

func TestAMessageThatIsStillHereShowsThatTheBrokerTookTheConsumerForLost(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1")
		keep(o.takeOne("a0-1"), msgctx.Again{Due: time.Now().Add(time.Minute)})
		o.rewind(n, errWaits)
		n = o.open(0)
		o.again(n, "a0-1")
		assert.False(t, n.Gone().Err() != nil)
		o.Do(func() {
			n.receive(amqp091.Delivery{DeliveryTag: 2, Body: []byte("a0-1"), Redelivered: true,
				Headers: amqp091.Table{"x-delivery-count": int64(2)}})
		})
		synctest.Wait()
		require.True(t, n.Gone().Err() != nil)
		require.ErrorIs(t, n.Reason(), errDeposed)
	})
}

// Copies of a message with one UUID, in another partition, of another key or with another payload, are other messages.
func TestCopiesOfAMessageWaitByThemselves(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1")
		msg := o.takeOne("a0-1")
		failed(msg, 2)
		keep(msg, msgctx.Again{Due: time.Now().Add(time.Minute)})
		o.rewind(n, errWaits)
		p, other := o.partitions[1], o.partitions[2]
		id := func(of string, body string) uint64 {
			return p.idOf(&dispatch.Arrival{Key: of, Msg: msg, Delivery: amqp091.Delivery{Body: []byte(body)}})
		}
		same := id("a0", "a0-1")
		assert.Contains(t, p.kept, same)
		assert.Empty(t, other.kept)
		assert.NotEqual(t, same, id("b0", "a0-1"))
		assert.NotEqual(t, same, id("a0", "a0-2"))
	})
}

func TestWhatWentBackIsForgottenAfterAnHour(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1", "b0-1")
		_, messages := o.take()
		keep(messages[0], msgctx.Again{Due: time.Now().Add(time.Minute)})
		keep(messages[1], msgctx.Again{Due: time.Now().Add(time.Second)})
		time.Sleep(2 * time.Second) // the second is due, and nothing takes it
		synctest.Wait()
		o.rewind(n, errWaits)
		time.Sleep(keptFor + 1)
		assert.Len(t, n.of.kept, 2)
		o.rewind(o.open(0), errWaits)
		assert.Empty(t, n.of.kept)
	})
}

func TestWhatWaitsIsCounted(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		is := func(waiting, behind int, blocked ...string) {
			t.Helper()
			synctest.Wait()
			status := n.of.status()
			assert.Equal(t, []int{waiting, behind}, []int{status.Waiting, status.Behind})
			var keys []string
			for _, b := range status.Blocked {
				keys = append(keys, b.Key)
			}
			assert.Equal(t, blocked, keys)
		}
		o.deliver(n, "a0-1", "a0-2", "b0-1")
		_, messages := o.take()
		keep(messages[0], msgctx.Again{Due: time.Now().Add(time.Minute)})
		is(1, 1)
		o.deliver(n, "a0-3")
		is(1, 2)
		keep(messages[1], msgctx.Again{Blocked: true})
		is(2, 2, "b0")
		blocked := n.of.status().Blocked[0]
		time.Sleep(time.Second)
		o.rewind(n, errWaits)
		n = o.open(0)
		is(0, 0)
		o.again(n, "a0-1", "a0-2", "b0-1")
		is(2, 1, "b0")
		assert.Equal(t, blocked, n.of.status().Blocked[0], "since then, although it was given back")
		time.Sleep(time.Minute)
		o.takeOne("a0-1").Ack()
		is(1, 0, "b0")
		o.takeOne("a0-2").Ack()
		is(1, 0, "b0")
	})
}

// A message that waits, and whose session ends at that moment, goes on with its failures in the next one.
func TestAMessageThatIsToWaitWhileItsSessionEnds(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1")
		msg := o.takeOne("a0-1")
		go func() {
			time.Sleep(time.Second)
			failed(msg, 1)
			msgctx.Lookup(msg).Again = &msgctx.Again{Metadata: msg.Metadata, Due: time.Now().Add(time.Minute)}
			msg.Ack()
		}()
		assert.Equal(t, time.Second, o.rewind(n, errWaits))
		assert.Empty(t, n.of.waiting)
		n = o.open(0)
		o.again(n, "a0-1")
		got, _ := o.take()
		assert.Empty(t, got)
		time.Sleep(time.Minute)
		msg = o.takeOne("a0-1")
		assert.Equal(t, 1, failuresOf(msg))
		msg.Ack()
	})
}

// The due time of a message is that of a clock, which may be set back. The message would be held until the end of its
// session.
func TestAMessageDoesNotWaitLongerWhereTheClockIsSetBack(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1")
		keep(o.takeOne("a0-1"), msgctx.Again{Due: time.Now().Add(time.Minute)})
		o.Do(func() {
			for _, kept := range n.of.kept {
				kept.Due = kept.Due.Add(time.Millisecond)
			}
		})
		time.Sleep(time.Minute)
		o.takeOne("a0-1").Ack()
	})
}

// five has five partitions.
type five struct{ partitioned }

func (five) Queues(string) (partitions []string, members string) { return make([]string, 5), "" }

func TestAProcessHasAShareOfThePartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOrderedOf(t, app{}, five{})
		sessions := make([]*orderedSession, 6)
		for i := range sessions { // the intake counts as none, and so does a partition from which nothing has come
			sessions[i] = o.open(i - 1)
		}
		o.deliver(sessions[0], "a0-0")
		for own, tooMany := range [][]int{{}, {}, {5}, {3, 4, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}} {
			if own > 0 {
				o.deliver(sessions[own], fmt.Sprint("a0-", own))
			}
			for processes := range 6 {
				assert.Equal(t, slices.Contains(tooMany, processes), o.hasMoreThanItsShare(processes),
					"%d of 5, %d processes", own, processes)
			}
		}
		sessions[4].Leave(errNacked)
		sessions[5].Leave(errNacked)
		assert.False(t, o.hasMoreThanItsShare(2), "what ends counts as none: 3 are left")
		o.close()
	})
}

func TestTheAcksOfASessionAreSentBeforeItsEnd(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		n.channel.AckTakes = time.Second
		o.deliver(n, "a0-1", "b0-1")
		_, messages := o.take()
		messages[0].Ack()
		synctest.Wait() // it is being sent
		messages[1].Ack()
		o.rewind(n, errWaits)
		assert.Equal(t, []string{"ack 1", "ack 2"}, n.settled())
	})
}

// TestAChannelIsClosedWhenTheQueueHasItsAcks and not before, whatever the reason: a quorum queue forgets acks that its
// channel keeps back.
func TestAChannelIsClosedWhenTheQueueHasItsAcks(t *testing.T) {
	for name, row := range map[string]struct {
		number int
		reason error
		stop   bool
		calls  []string // after the start of the session
	}{
		"no queue":         {-1, errReturned, false, []string{"qos 16", "consume queue", "cancel"}},
		"a nack":           {-1, errNacked, false, []string{"qos 16", "consume queue", "cancel"}},
		"a stop":           {-1, nil, true, []string{"qos 16", "consume queue", "cancel"}},
		"a hand-over":      {0, errBalance, false, []string{"qos 16", "consume queue.order.0", "cancel"}},
		"a lost channel":   {-1, errors.New("the channel was closed"), false, nil},
		"on RabbitMQ 3.10": {-1, errWaits, false, []string{"qos 0", "qos 16", "consume queue", "qos 65535", "cancel"}},
	} {
		t.Run(name, func(t *testing.T) {
			ordered1(t, func(t *testing.T, o *orderedScene) {
				if name == "on RabbitMQ 3.10" {
					o.version = "3.10.8"
				}
				n := o.open(row.number)
				n.channel.Calls()
				if name == "a lost channel" {
					_ = n.channel.Close()
					<-n.Lost.Done()
				}
				if row.stop {
					o.stop()
				}
				o.rewind(n, row.reason)
				synctest.Wait()
				assert.True(t, n.channel.IsClosed())
				assert.Equal(t, row.calls, n.channel.Calls())
			})
		})
	}
}

func TestTheEndOfAPauseEndsHolds(t *testing.T) {
	for name, row := range map[string]struct{ held, resumed, want time.Duration }{
		"an operator":                           {20 * time.Second, 30 * time.Second, 50 * time.Second},
		"a handler that pauses again and again": {0, time.Second, balancePeriod},
	} {
		t.Run(name, func(t *testing.T) {
			inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
				began := time.Now()
				o.deliver(n, "a0-1")
				msg := o.takeOne("a0-1")
				time.Sleep(row.held)
				go func() {
					select {
					case <-msgctx.Lookup(msg).Leaving:
					case <-time.After(10 * time.Minute):
					}
					msg.Nack()
				}()
				o.Limit(0)
				time.AfterFunc(row.resumed/2, func() { o.Limit(1); o.Limit(0) }) // a probe that is over
				time.AfterFunc(row.resumed, func() { o.Limit(-1) })
				o.rewind(n, n.Keep())
				assert.Equal(t, row.want, time.Since(began))
			})
		})
	}
}

func TestAPartitionFollowsAPauseAtOnce(t *testing.T) {
	inPartition(t, func(t *testing.T, o *orderedScene, n *orderedSession) {
		o.deliver(n, "a0-1", "a0-2")
		synctest.Wait()
		assert.Equal(t, 1, o.Taken(), "what waits for its key is not meant for a probe")
		began := time.Now()
		time.AfterFunc(time.Second, func() { o.Limit(0) })
		require.NoError(t, n.Keep())
		assert.Equal(t, time.Second, time.Since(began))
	})
}

func TestAPausedPartitionIsNotOpened(t *testing.T) {
	ordered1(t, func(t *testing.T, o *orderedScene) {
		o.Limit(0)
		opened, err := o.partitions[1].Begin(&wire.Connection{Client: &amqp091.Connection{}})
		assert.NoError(t, err)
		assert.Nil(t, opened)
	})
}

// What is received after the end of a session is not the reason of the end.
func TestASessionHasItsFirstReason(t *testing.T) {
	ordered1(t, func(t *testing.T, o *orderedScene) {
		lost := o.open(0)
		lost.channel.End(amqp091.ErrClosed)
		<-lost.Lost.Done()
		o.deliver(lost, "a0-1")
		for range 20 { // both are ready
			assert.ErrorIs(t, lost.Keep(), amqp091.ErrClosed)
			o.deliver(lost, "a0-2")
		}
		cancelled := o.open(1)
		cancelled.Leave(channel.ErrCancelled)
		o.deliver(cancelled, "a1-1")
		assert.ErrorIs(t, cancelled.Keep(), channel.ErrCancelled)
	})
}

// TestAges: the age of the oldest delivery is known to a second, and what is acknowledged is forgotten.
func TestAges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a ages
		for tag := range uint64(1000) {
			a.add(tag + 1)
			assert.Zero(t, a.of(tag+2), "all are acknowledged")
			time.Sleep(2 * time.Second)
		}
		assert.Len(t, a.list, 1)
		time.Sleep(time.Hour)
		a.add(1001)
		assert.Zero(t, a.of(1001), "it is not as old as the one before it")
		time.Sleep(time.Minute)
		a.add(1002)
		assert.Equal(t, time.Minute, a.of(1001))
		assert.Zero(t, a.of(1002))
	})
}
