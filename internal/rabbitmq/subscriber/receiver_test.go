package subscriber

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

// A scene is a receiver with one consumer. Its test sends the deliveries, and sees how each is settled.
type scene struct {
	*subscription
	account    *fakeChannel
	session    *session
	consumer   *consumer
	deliveries chan amqp091.Delivery
	tag        uint64
}

// An app has functions that a test sets.
type app struct {
	Handler
	unmarshal func(uuid string) error
	nacked    func(uuid string)
}

func (a app) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if a.unmarshal != nil {
		if err := a.unmarshal(string(d.Body)); err != nil {
			return nil, err
		}
	}
	return message.NewMessage(string(d.Body), nil), nil
}

func (a app) Nacked(msg *message.Message, _ amqp091.Delivery) bool {
	if a.nacked != nil {
		a.nacked(msg.UUID)
	}
	return false
}

func newLine(t testing.TB, config Config, account *fakeChannel) *scene {
	t.Helper()
	return newLineOf(t, app{}, config, account)
}

func newLineOf(t testing.TB, handler Handler, config Config, account *fakeChannel) *scene {
	t.Helper()
	require.NoError(t, config.Validate())
	config.setDefaults()
	owner := &Subscriber{handler: handler, config: config, connection: &Connection{}, logger: watermill.NopLogger{}}
	s := newSubscription(owner, msgctx.NewContext(t.Context(), &msgctx.Subscription{}), "topic", "queue")
	l := &scene{subscription: s, account: account}
	go s.receiver.run()
	l.open()
	return l
}

// open begins a session with a consumer.
func (l *scene) open() {
	l.session = &session{closed: make(chan struct{})}
	l.session.settler = newSettler(l.account, l.account, l.stopping)
	go l.session.settler.run()
	l.tag = 0
	l.consume()
}

// consume begins a consumer.
func (l *scene) consume() {
	l.deliveries = make(chan amqp091.Delivery)
	bound, prefetch := l.fetch()
	l.consumer = &consumer{
		session: l.session, deliveries: l.deliveries, ended: make(chan struct{}), bound: bound, prefetch: prefetch,
	}
	l.session.consumer.Store(l.consumer)
	l.session.consumerBegins()
	begun := l.consumer
	l.receiver.ask(func() { l.receiver.begin(begun) })
	l.setState(l.session)
}

// deliver sends deliveries, whose bodies are the UUIDs.
func (l *scene) deliver(uuids ...string) {
	for _, uuid := range uuids {
		l.tag++
		l.deliveries <- amqp091.Delivery{DeliveryTag: l.tag, Body: []byte(uuid)}
	}
}

// cancel ends the consumer, as follow does.
func (l *scene) cancel() {
	close(l.deliveries)
	<-l.consumer.ended
	l.session.consumer.Store(nil)
	l.session.consumerEnded()
}

// take receives all messages that are handed out now.
func (l *scene) take() (uuids []string, messages []*message.Message) {
	for {
		synctest.Wait()
		select {
		case msg, open := <-l.receiver.out:
			if !open {
				return uuids, messages
			}
			uuids, messages = append(uuids, msg.UUID), append(messages, msg)
		default:
			return uuids, messages
		}
	}
}

// settled returns the acks and nacks that have left.
func (l *scene) settled() []string {
	synctest.Wait()
	l.account.mu.Lock()
	defer l.account.mu.Unlock()
	frames := l.account.frames
	l.account.frames = nil
	return frames
}

// close ends the subscription as shutDown does. Messages in flight have to be settled.
func (l *scene) close() {
	l.stop()
	<-l.receiver.stopped
	l.workers.Wait()
	l.receiver.quit()
	l.session.flush()
}

func TestMessagesAreHandedOutInTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 1, Prefetch: 8}, newFakeChannel(8))
		defer l.close()
		l.deliver("a", "b", "c")
		synctest.Wait()
		assert.Equal(t, 3, l.Taken(), "all that were delivered")
		for _, want := range []string{"a", "b", "c"} {
			got, messages := l.take()
			require.Equal(t, []string{want}, got, "one at a time")
			messages[0].Ack()
		}
		synctest.Wait()
		assert.Zero(t, l.Taken())
		assert.Equal(t, []string{"ack 1", "ack 2", "ack 3"}, l.settled())
	})
}

func TestAPauseTakesBackAMessageThatIsOffered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2}, newFakeChannel(8))
		defer l.close()
		l.deliver("a")
		synctest.Wait() // it is offered, and the router does not take it
		l.Limit(0)
		got, _ := l.take()
		assert.Empty(t, got)
		l.Limit(gate.None)
		_, messages := l.take()
		require.Len(t, messages, 1)
		messages[0].Ack()
	})
}

// Watermill's Retry returns why the context has ended: below InstantAck that is in the line about a message that may be
// lost.
func TestTheContextOfASettledMessageSaysWhyItHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 1}, newFakeChannel(8))
		defer l.close()
		l.deliver("a")
		_, messages := l.take()
		ctx := messages[0].Context()
		messages[0].Ack()
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), context.Canceled)
		assert.EqualError(t, context.Cause(ctx), "context canceled: the message was acknowledged or given back")
	})
}

func keyOf(msg *message.Message) string { key, _, _ := strings.Cut(msg.UUID, "-"); return key }

func TestMessagesOfAKeyWaitForOneAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 3, Prefetch: 16, OrderKey: keyOf}, newFakeChannel(16))
		defer l.close()
		l.deliver("a-1", "a-2", "b-1", "a-3", "-1", "-2", "b-2")
		got, first := l.take()
		assert.Equal(t, []string{"a-1", "b-1", "-1"}, got, "other keys overtake, up to the concurrency")
		first[2].Ack()
		got, second := l.take()
		assert.Equal(t, []string{"-2"}, got)
		first[0].Ack()
		got, third := l.take()
		assert.Equal(t, []string{"a-2"}, got)
		third[0].Ack()
		first[1].Ack()
		second[0].Ack()
		got, last := l.take()
		assert.ElementsMatch(t, []string{"a-3", "b-2"}, got)
		last[0].Ack()
		last[1].Ack()
		synctest.Wait()
		assert.Empty(t, l.receiver.waiting, "no key stays")
	})
}

func TestAPauseEndsBeforeTheBacklogGoesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2, Prefetch: 8}, newFakeChannel(8))
		defer l.close()
		l.deliver("a", "b", "c", "d")
		got, first := l.take()
		require.Equal(t, []string{"a", "b"}, got)
		l.Limit(0)
		first[0].Ack()
		got, _ = l.take()
		assert.Empty(t, got, "paused")
		assert.Equal(t, []string{"ack 1"}, l.settled(), "acks go on")
		assert.Equal(t, 2, l.Taken(), "messages in flight from before the pause count no more")
		l.deliver("e") // was on its way
		l.cancel()
		l.Limit(1)
		got, second := l.take()
		assert.Equal(t, []string{"c"}, got, "nothing went back: the one in flight takes no place of the limit")
		l.Limit(-1)
		got, _ = l.take()
		assert.Empty(t, got, "but one of all")
		first[1].Ack()
		got, third := l.take()
		assert.Equal(t, []string{"d"}, got)
		second[0].Ack()
		third[0].Ack()
		<-l.changes
		_, last := l.take()
		last[0].Ack()
		synctest.Wait()
		assert.False(t, l.receiver.ready.Load())
		assert.Len(t, l.changes, 1, "a consumer may begin")
	})
}

func TestAPauseGivesBackTheBacklogInItsOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2, Prefetch: 16, OrderKey: keyOf}, newFakeChannel(16))
		defer l.close()
		l.deliver("a-1", "a-2", "b-1", "b-2", "c-1", "a-3")
		got, first := l.take()
		require.Equal(t, []string{"a-1", "b-1"}, got)
		l.Limit(0)
		l.cancel()
		l.giveBack(l.session)
		assert.Equal(t, []string{"nack 2", "nack 4", "nack 5", "nack 6"}, l.settled())
		l.giveBack(l.session)
		assert.Empty(t, l.settled(), "once")
		assert.Zero(t, l.Taken())
		l.Limit(2)
		l.consume()
		l.deliver("a-2", "d-1")
		got, _ = l.take()
		assert.Empty(t, got, "the concurrency is the bound of all")
		first[1].Ack()
		got, second := l.take()
		assert.Equal(t, []string{"d-1"}, got, "a-1 still runs")
		first[0].Ack()
		got, third := l.take()
		assert.Equal(t, []string{"a-2"}, got)
		second[0].Ack()
		third[0].Ack()
	})
}

// The session of these tests has no channel: a step that consumes or cancels would fail.
func TestFollowTakesOneStepAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 1, Prefetch: 8}, newFakeChannel(8))
		defer l.close()
		l.deliver("a", "b", "c")
		_, first := l.take()
		l.Limit(0)
		l.Limit(gate.None)
		require.NoError(t, l.follow(l.session), "a pause that ended at once")
		first[0].Ack()
		l.Limit(0)
		l.cancel()
		l.Limit(gate.None)
		require.NoError(t, l.follow(l.session), "the line comes first")
		_, second := l.take()
		l.Limit(0)
		require.NoError(t, l.follow(l.session))
		assert.Equal(t, []string{"ack 1", "nack 3"}, l.settled(), "paused: the backlog goes back")
		second[0].Ack()
	})
}

func TestAMessageThatIsSetAsideTakesNoPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 1, Prefetch: 2}, newFakeChannel(8))
		defer l.close()
		l.deliver("a", "b")
		_, first := l.take()
		assert.False(t, l.usedUp(l.consumer))
		msgctx.Lookup(first[0]).Place.SetAside()
		msgctx.Lookup(first[0]).Place.SetAside()
		got, second := l.take()
		assert.Equal(t, []string{"b"}, got)
		assert.Equal(t, 1, l.Taken())
		assert.Equal(t, 1, l.asideOf(l.consumer))
		assert.False(t, l.usedUp(l.consumer), "one of two messages of the prefetch is left")
		msgctx.Lookup(second[0]).Place.SetAside()
		synctest.Wait()
		assert.True(t, l.usedUp(l.consumer))
		assert.Len(t, l.changes, 1, "run looks at it")
		first[0].Ack()
		second[0].Nack()
		synctest.Wait()
		assert.Zero(t, l.Taken(), "each place is given back once")
	})
}

// Calls are bounded by Concurrency, and messages in flight by Prefetch, whichever connection has delivered them.
func TestAMessageWhoseCallHasEndedTakesAPlaceOfPrefetchOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2, Prefetch: 3}, newFakeChannel(8))
		defer l.close()
		l.deliver("a", "b", "c")
		got, first := l.take()
		assert.Equal(t, []string{"a", "b"}, got)
		msgctx.Lookup(first[0]).Place.EndCall()
		got, second := l.take()
		assert.Equal(t, []string{"c"}, got)
		msgctx.Lookup(first[1]).Place.EndCall()
		l.session.settler.end() // the connection is lost
		close(l.deliveries)
		l.open()
		l.deliver("b", "c", "d")
		got, _ = l.take()
		assert.Empty(t, got, "three are in flight")
		assert.Equal(t, []int{3, 1}, []int{l.health().InFlight, l.health().Calls})
		first[0].Ack()
		got, third := l.take()
		assert.Equal(t, []string{"b"}, got)
		first[1].Ack()
		got, _ = l.take()
		assert.Empty(t, got, "two calls")
		for _, msg := range append(second, third...) {
			msg.Ack()
		}
		got, last := l.take()
		assert.Equal(t, []string{"c", "d"}, got)
		for _, msg := range last {
			msg.Ack()
		}
	})
}

func TestWhereThereIsAnOrderAMessageKeepsItsPlaceUntilItIsSettled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"one at a time": {Concurrency: 1, Prefetch: 4}, "with keys": {Concurrency: 2, Prefetch: 4, OrderKey: keyOf},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, c, newFakeChannel(8))
				defer l.close()
				l.deliver("x1", "y1", "z1")
				_, first := l.take()
				require.Len(t, first, c.Concurrency)
				for _, msg := range first {
					msgctx.Lookup(msg).Place.EndCall()
				}
				got, _ := l.take()
				assert.Empty(t, got)
				for len(first) > 0 {
					first[0].Ack()
					_, next := l.take()
					first = append(first[1:], next...)
				}
			})
		})
	}
}

func TestAMessageThatCannotBeUnmarshalledTakesAPlaceWhileItsNackWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLineOf(t, app{unmarshal: func(uuid string) error {
			if uuid == "unreadable" {
				return errors.New(uuid)
			}
			return nil
		}}, Config{Concurrency: 1, Prefetch: 4, NackInitial: time.Second}, newFakeChannel(8))
		defer l.close()
		l.deliver("unreadable", "a")
		got, _ := l.take()
		assert.Empty(t, got)
		time.Sleep(time.Second)
		got, messages := l.take()
		assert.Equal(t, []string{"a"}, got)
		assert.Equal(t, []string{"nack 1"}, l.settled())
		messages[0].Ack()
	})
}

func TestTheReceiverGoesOnAfterTheAppHasEndedItsGoroutine(t *testing.T) {
	t.Parallel()
	exit := func(uuid string) {
		if uuid == "exits" {
			runtime.Goexit()
		}
	}
	for name, row := range map[string]struct {
		app    app
		config Config
	}{
		"Unmarshal": {app: app{unmarshal: func(uuid string) error { exit(uuid); return nil }}},
		"OrderKey":  {config: Config{OrderKey: func(msg *message.Message) string { exit(msg.UUID); return "" }}},
		"Nacked":    {app: app{nacked: exit}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				row.config.Concurrency = 2
				l := newLineOf(t, row.app, row.config, newFakeChannel(8))
				defer l.close()
				l.deliver("exits", "a")
				_, messages := l.take()
				for _, msg := range messages {
					if msg.UUID == "exits" {
						msg.Nack()
					} else {
						msg.Ack()
					}
				}
				time.Sleep(time.Minute)
				assert.ElementsMatch(t, []string{"nack 1", "ack 2"}, l.settled())
				assert.Zero(t, l.Taken())
				assert.Zero(t, l.inFlight.Load())
			})
		})
	}
}

func TestAMessageThatIsDeliveredAgainWaitsForItsFirstDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2, Prefetch: 8, OrderKey: keyOf}, newFakeChannel(8))
		defer l.close()
		l.deliver("a-1", "a-2", "b-1", "c-1")
		_, first := l.take()
		l.session.settler.end() // the connection is lost
		close(l.deliveries)
		<-l.consumer.ended
		l.giveBack(l.session) // the broker delivers them again
		l.account.next, l.account.settled = 9, map[uint64]string{}
		l.open()
		l.deliver("a-1", "a-2", "c-1")
		got, _ := l.take()
		assert.Empty(t, got, "handlers go on: the concurrency holds")
		first[1].Ack()
		got, second := l.take()
		assert.Equal(t, []string{"c-1"}, got)
		first[0].Ack()
		got, third := l.take()
		assert.Equal(t, []string{"a-1"}, got)
		third[0].Ack()
		second[0].Ack()
		_, last := l.take()
		last[0].Ack()
		assert.Len(t, l.settled(), 3, "of the new channel")
	})
}

func TestAStopHandsOutNothingMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 1, Prefetch: 8}, newFakeChannel(8))
		l.deliver("a", "b")
		_, messages := l.take()
		l.stop()
		_, open := <-l.receiver.out
		assert.False(t, open)
		l.deliver("c") // was on its way
		messages[0].Ack()
		l.cancel()
		l.giveBack(l.session)
		assert.ElementsMatch(t, []string{"ack 1", "nack 2", "nack 3"}, l.settled())
		l.close()
	})
}

// The race detector sees what the receiver shares.
func TestChangesOfTheLimitWhileMessagesAreHandled(t *testing.T) {
	t.Parallel()
	const all = 3000
	l := newLine(t, Config{Concurrency: 4, Prefetch: 32, OrderKey: keyOf}, newFakeChannel(all))
	var mu sync.Mutex
	last := map[string]string{}
	var handled sync.WaitGroup
	handled.Add(all)
	go func() {
		for msg := range l.receiver.out {
			go func() {
				mu.Lock()
				assert.Less(t, last[keyOf(msg)], msg.UUID, "the order of the queue")
				last[keyOf(msg)] = msg.UUID
				mu.Unlock()
				if place := msgctx.Lookup(msg).Place; msg.UUID[5]%2 == 0 {
					place.SetAside()
				}
				msg.Ack()
				handled.Done()
			}()
		}
	}()
	for i := range all {
		l.deliver(fmt.Sprintf("%c-%04d", 'a'+i%5, i))
		switch i % 30 {
		case 10:
			l.Limit(0)
		case 20:
			l.Limit(2)
		case 25:
			l.Limit(gate.None)
		}
	}
	l.Limit(gate.None)
	handled.Wait()
	l.close()
	assert.Zero(t, l.Taken())
}

func TestAPauseWithdrawsWhatIsOfferedWhileAnotherMessageIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(string) error { time.Sleep(time.Second); return nil }
		l := newLineOf(t, app{unmarshal: slow}, Config{Concurrency: 2}, newFakeChannel(8))
		defer l.close()
		l.deliver("a", "b")
		synctest.Wait() // a is offered
		l.Limit(0)
		time.Sleep(2 * time.Second)
		got, _ := l.take()
		assert.Empty(t, got)
		l.cancel()
		l.Limit(1)
		got, messages := l.take()
		assert.Equal(t, []string{"a"}, got)
		messages[0].Ack()
		_, messages = l.take()
		messages[0].Ack()
	})
}

func TestGiveBackTakesWhatIsOffered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2}, newFakeChannel(8))
		defer l.close()
		l.deliver("a")
		synctest.Wait()
		l.giveBack(l.session)
		got, _ := l.take()
		assert.Empty(t, got)
		assert.Equal(t, []string{"nack 1"}, l.settled())
	})
}

// amqp091-go still has deliveries of the session before.
func TestANewSessionGivesBackWhatTheLastOneHasNotReceived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(string) error { time.Sleep(time.Second); return nil }
		account := newFakeChannel(8)
		l := newLineOf(t, app{unmarshal: slow}, Config{Concurrency: 8}, account)
		old, last, deliveries := l.session, l.consumer, l.deliveries
		go func() {
			for tag := range uint64(8) {
				deliveries <- amqp091.Delivery{DeliveryTag: tag + 1, Body: []byte{'a' + byte(tag)}}
			}
			close(deliveries)
		}()
		synctest.Wait() // the first is read
		l.account = newFakeChannel(1)
		l.open()
		l.received(last)
		l.giveBack(old)
		old.consumerEnded()
		old.flush()
		assert.Len(t, account.settled, 8)
		l.close()
	})
}

func TestAFunctionOfTheAppThatHangsDoesNotKeepTheBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		unmarshal := func(uuid string) error {
			if uuid == "hangs" {
				<-hang
			}
			return nil
		}
		l := newLineOf(t, app{unmarshal: unmarshal}, Config{Concurrency: 1}, newFakeChannel(8))
		l.deliver("hangs")
		l.stop()
		time.AfterFunc(time.Second, func() { close(l.givenUp) })
		begin := time.Now()
		l.received(l.consumer)
		l.giveBack(l.session) // it does not wait: the broker takes the messages back when the channel is closed
		assert.Equal(t, time.Second, time.Since(begin))
		close(hang)
		l.close()
	})
}

func TestAFunctionOfTheAppThatHangsDoesNotKeepTheSubscriber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		unmarshal := func(string) error { <-hang; return nil }
		l := newLineOf(t, app{unmarshal: unmarshal}, Config{CloseTimeout: time.Second}, newFakeChannel(8))
		l.deliver("hangs")
		l.stop()
		begin := time.Now()
		l.shutDown(nil)
		assert.Equal(t, time.Second+giveUpAfter+2*answerTimeout, time.Since(begin))
		close(hang)
		<-l.receiver.over
		l.session.flush()
	})
}

func TestTheCancelOfAnEarlierConsumerEndsNothing(t *testing.T) {
	t.Parallel()
	n := &session{cancels: make(chan string, 2), closed: make(chan struct{})}
	n.consumer.Store(&consumer{tag: "second"})
	n.cancels <- "first"
	n.cancels <- "second"
	err := n.wait(nil, nil)
	require.ErrorIs(t, err, errCancelled)
	assert.ErrorContains(t, err, "second")
	n.consumer.Store(nil) // it was being ended: its queue may be gone
	n.cancels <- "second"
	assert.ErrorIs(t, n.wait(nil, nil), errCancelled)
}

// A message that is held learns that its channel is lost. Its place is free when it is nacked, without a pause: the
// broker has given it out again.
func TestAMessageLearnsThatItsChannelIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2, NackInitial: time.Minute}, newFakeChannel(8))
		l.deliver("a", "b")
		_, messages := l.take()
		require.Len(t, messages, 2)
		require.NoError(t, msgctx.Lookup(messages[0]).Lost.Err())
		began := time.Now()
		messages[0].Nack() // and waits
		synctest.Wait()
		l.cancel()
		l.session.end()
		synctest.Wait()
		assert.Error(t, msgctx.Lookup(messages[1]).Lost.Err())
		assert.NoError(t, messages[1].Context().Err(), "the handler goes on")
		messages[1].Nack()
		l.open()
		l.deliver("a", "b")
		uuids, messages := l.take()
		assert.Equal(t, []string{"a", "b"}, uuids, "both places are free")
		assert.Zero(t, time.Since(began))
		for _, msg := range messages {
			assert.NoError(t, msgctx.Lookup(msg).Lost.Err())
			msg.Ack()
		}
		assert.Equal(t, []string{"acks 2"}, l.settled())
		l.close()
	})
}
