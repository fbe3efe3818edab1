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
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/socket"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A scene is a subscription with one consumer. Its test sends the deliveries, and sees how each is settled.
type scene struct {
	*Subscription
	*plain
	account *channeltest.Channel // of the session
	session *session             // the one that is received from
	last    *session
	tag     uint64
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

func (app) QueueOf(string) (string, error) { return "queue", nil }

// inScene runs f in a scene, in virtual time, and ends the scene.
func inScene(t *testing.T, handler Handler, config Config, f func(t *testing.T, l *scene)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newScene(t, handler, config, channeltest.New(16))
		defer l.close()
		f(t, l)
	})
}

func newScene(t testing.TB, handler Handler, config Config, account *channeltest.Channel) *scene {
	t.Helper()
	owner := NewSubscriber(&Connection{}, handler, config, watermill.NopLogger{})
	s, err := owner.Begin(msgctx.NewContext(t.Context(), &msgctx.Subscription{}), "topic")
	require.NoError(t, err)
	l := &scene{Subscription: s, plain: newPlain(s), account: account}
	go s.Run()
	l.open()
	return l
}

func newConnection() *wire.Connection {
	return &wire.Connection{Client: &amqp091.Connection{}, Socket: socket.New(nil, time.Second)}
}

// newSession returns a session that nothing receives from.
func (l *scene) newSession() *session {
	if l.account.IsClosed() {
		l.account = channeltest.New(8)
	}
	bound, prefetch := l.fetch()
	n, err := l.on(newConnection(), l.account, bound, prefetch)
	if err != nil {
		panic(err)
	}
	l.last = n
	return l.last
}

// open begins a session.
func (l *scene) open() {
	l.session, l.tag = l.newSession(), 0
	l.adopt(l.session)
}

// deliver sends deliveries, whose bodies are the UUIDs.
func (l *scene) deliver(uuids ...string) {
	for _, uuid := range uuids {
		l.tag++
		l.account.Deliveries <- amqp091.Delivery{DeliveryTag: l.tag, Body: []byte(uuid)}
	}
}

// lose loses the connection.
func (l *scene) lose() {
	l.account.End(nil)
	<-l.session.Lost.Done()
	l.session.Retire(l.session.Reason())
}

// take receives all messages that are handed out now.
func (l *scene) take() (uuids []string, messages []*message.Message) {
	for {
		synctest.Wait()
		select {
		case msg, open := <-l.Out:
			if !open {
				return uuids, messages
			}
			uuids, messages = append(uuids, msg.UUID), append(messages, msg)
		default:
			return uuids, messages
		}
	}
}

// settled returns how deliveries have been settled.
func (l *scene) settled() []string {
	synctest.Wait()
	return l.account.Fresh()
}

// close ends the subscription as shutDown does. Messages in flight have to be settled. One that is about to be handed
// out may still be.
func (l *scene) close() {
	l.stop()
	for msg := range l.Out {
		msg.Nack()
	}
	l.Workers.Wait()
	l.Quit()
	l.session.Abandon()
	<-l.session.Lost.Done()
}

func TestMessagesAreHandedOutInTheOrderOfTheQueue(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 1, Prefetch: 8}, func(t *testing.T, l *scene) {
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

// Watermill's Retry returns why the context has ended: below InstantAck that is in the line about a message that may be
// lost.
func TestTheContextOfASettledMessageSaysWhyItHasEnded(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 1}, func(t *testing.T, l *scene) {
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
	inScene(t, app{}, Config{Concurrency: 3, Prefetch: 16, OrderKey: keyOf}, func(t *testing.T, l *scene) {
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
		assert.Empty(t, l.keys, "no key stays")
	})
}

func TestAPauseGivesBackTheBacklogInItsOrder(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 2, Prefetch: 16, OrderKey: keyOf}, func(t *testing.T, l *scene) {
		l.deliver("a-1", "a-2", "b-1", "b-2", "c-1", "a-3")
		got, first := l.take()
		require.Equal(t, []string{"a-1", "b-1"}, got)
		l.Limit(0)
		first[1].Ack()
		assert.Equal(t, []string{"ack 3"}, l.settled(), "acks go on")
		l.deliver("b-3") // was on its way
		paused := l.session
		l.session.Retire(nil)
		assert.Equal(t, []string{"nack 2", "nack 4", "nack 5", "nack 6", "nack 7"}, l.settled())
		assert.Zero(t, l.Taken(), "messages in flight from before the pause count no more")
		l.Limit(2)
		l.account = channeltest.New(8)
		l.open()
		l.deliver("a-2", "d-1")
		got, second := l.take()
		assert.Equal(t, []string{"d-1"}, got, "a-1 still runs, and the concurrency is the bound of all")
		assert.False(t, paused.Lost.Err() != nil)
		first[0].Ack()
		<-paused.Lost.Done() // when all is settled
		got, third := l.take()
		assert.Equal(t, []string{"a-2"}, got)
		second[0].Ack()
		third[0].Ack()
	})
}

// What was fetched before is handed out, and counts under the new limit. A pause gives it back, too.
func TestAnotherLimitGivesNothingBack(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 2, Prefetch: 8}, func(t *testing.T, l *scene) {
		l.deliver("a", "b", "c", "d")
		_, first := l.take()
		l.Limit(1)
		l.session.Retire(errLimit)
		before := l.account
		l.account = channeltest.New(8)
		l.open()
		l.deliver("e")
		first[0].Ack()
		got, _ := l.take()
		assert.Empty(t, got, "one of all")
		first[1].Ack()
		got, second := l.take()
		assert.Equal(t, []string{"c"}, got)
		l.Limit(0)
		l.session.Retire(nil)
		assert.Equal(t, []string{"nack 1"}, l.settled())
		second[0].Ack()
		l.account = before
		assert.ElementsMatch(t, []string{"ack 1", "ack 2", "nack 4", "ack 3"}, l.settled())
	})
}

func TestASessionFollowsTheLimit(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 4}, func(t *testing.T, l *scene) {
		for _, row := range []struct {
			from int
			to   []int
			want error
		}{
			{gate.None, []int{1}, errLimit}, {1, []int{gate.None}, errLimit}, {2, []int{0}, nil},
			{gate.None, []int{4, 5, gate.None, 3}, errLimit}, // the first ones allow as much
		} {
			l.Limit(row.from)
			l.session.bound, l.session.Prefetch = l.fetch()
			ended := make(chan error, 1)
			go func() { ended <- l.session.Keep() }()
			synctest.Wait()
			l.look()
			for _, limit := range row.to {
				synctest.Wait()
				require.Empty(t, ended)
				l.Limit(limit)
			}
			assert.Equal(t, row.want, <-ended)
		}
		l.Limit(1)
		l.session.bound, l.session.Prefetch = l.fetch()
		l.Limit(0)
		l.Limit(1) // a pause that ends at once
		l.stop()
		assert.NoError(t, l.session.Keep())
	})
}

func TestAMessageThatIsSetAsideTakesNoPlace(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 1, Prefetch: 2}, func(t *testing.T, l *scene) {
		l.deliver("a", "b")
		_, first := l.take()
		assert.False(t, l.session.usedUp())
		msgctx.Lookup(first[0]).Place.SetAside()
		msgctx.Lookup(first[0]).Place.SetAside()
		got, second := l.take()
		assert.Equal(t, []string{"b"}, got)
		assert.Equal(t, 1, l.Taken())
		assert.Equal(t, 1, l.session.asides())
		assert.False(t, l.session.usedUp(), "one of two messages of the prefetch is left")
		msgctx.Lookup(second[0]).Place.SetAside()
		synctest.Wait()
		assert.True(t, l.session.usedUp())
		assert.Len(t, l.Places.SetsAside(), 1, "Keep looks at it")
		first[0].Ack()
		second[0].Nack()
		synctest.Wait()
		assert.Zero(t, l.Taken(), "each place is given back once")
	})
}

// Calls are bounded by Concurrency, and messages in flight by Prefetch, whichever connection has delivered them.
func TestAMessageWhoseCallHasEndedTakesAPlaceOfPrefetchOnly(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 2, Prefetch: 3}, func(t *testing.T, l *scene) {
		l.deliver("a", "b", "c")
		got, first := l.take()
		assert.Equal(t, []string{"a", "b"}, got)
		msgctx.Lookup(first[0]).Place.EndCall()
		got, second := l.take()
		assert.Equal(t, []string{"c"}, got)
		msgctx.Lookup(first[1]).Place.EndCall()
		l.lose()
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
			inScene(t, app{}, c, func(t *testing.T, l *scene) {
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
	inScene(t, app{unmarshal: func(uuid string) error {
		if uuid == "unreadable" {
			return errors.New(uuid)
		}
		return nil
	}}, Config{Concurrency: 1, Prefetch: 4}, func(t *testing.T, l *scene) {
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

// exit ends the goroutine of a function of the app.
func exit(uuid string) error {
	if uuid == "exits" {
		runtime.Goexit()
	}
	return nil
}

// lateEnd is a channel whose consumer ends after the answer to its cancel.
type lateEnd struct{ *channeltest.Channel }

func (lateEnd) Cancel(string, bool) error { return nil }

func TestASessionIsReceivedToItsEndAfterTheAppHasEndedTheGoroutine(t *testing.T) {
	inScene(t, app{unmarshal: exit}, Config{Concurrency: 4}, func(t *testing.T, l *scene) {
		account := channeltest.New(8)
		n, err := l.on(newConnection(), lateEnd{account}, 4, 4)
		require.NoError(t, err)
		l.adopt(n)
		go func() {
			n.Retire(errLimit)
			l.adopt(l.session)
		}()
		synctest.Wait()
		for i, uuid := range []string{"exits", "a", "exits", "b"} {
			account.Deliveries <- amqp091.Delivery{DeliveryTag: uint64(i) + 1, Body: []byte(uuid)}
			synctest.Wait()
		}
		require.NoError(t, account.Cancel(n.Tag, false))
		got, messages := l.take()
		assert.Equal(t, []string{"a", "b"}, got)
		for _, msg := range messages {
			msg.Ack()
		}
		time.Sleep(time.Second)
	})
}

func TestTheReceiverGoesOnAfterTheAppHasEndedItsGoroutine(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		app    app
		config Config
	}{
		"Unmarshal": {app: app{unmarshal: exit}},
		"OrderKey":  {config: Config{OrderKey: func(msg *message.Message) string { _ = exit(msg.UUID); return "" }}},
		"Nacked":    {app: app{nacked: func(uuid string) { _ = exit(uuid) }}},
	} {
		t.Run(name, func(t *testing.T) {
			row.config.Concurrency = 2
			inScene(t, row.app, row.config, func(t *testing.T, l *scene) {
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
				assert.Zero(t, l.InFlight.Load())
			})
		})
	}
}

func TestAMessageThatIsDeliveredAgainWaitsForItsFirstDelivery(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 2, Prefetch: 8, OrderKey: keyOf}, func(t *testing.T, l *scene) {
		l.deliver("a-1", "a-2", "b-1", "c-1")
		_, first := l.take()
		l.lose() // the broker delivers them again
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
	inScene(t, app{}, Config{Concurrency: 1, Prefetch: 8}, func(t *testing.T, l *scene) {
		l.deliver("a", "b")
		_, messages := l.take()
		l.stop()
		_, open := <-l.Out
		assert.False(t, open)
		l.deliver("c") // was on its way
		messages[0].Ack()
		l.session.Retire(nil)
		assert.ElementsMatch(t, []string{"ack 1", "nack 2", "nack 3"}, l.settled())
	})
}

func TestAStopClosesTheMessagesWhateverElseIsReady(t *testing.T) {
	t.Parallel()
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			slow := func(string) error { time.Sleep(time.Second); return nil }
			l := newScene(t, app{unmarshal: slow}, Config{Concurrency: 1}, channeltest.New(8))
			l.deliver("a")
			synctest.Wait() // it is read
			l.stop()
			go l.Quit()
			_, open := <-l.Out
			assert.False(t, open)
			l.session.Abandon()
		})
	}
}

// The race detector sees what the receiver shares.
func TestChangesOfTheLimitWhileMessagesAreHandled(t *testing.T) {
	t.Parallel()
	const all = 3000
	l := newScene(t, app{}, Config{Concurrency: 4, Prefetch: 32, OrderKey: keyOf}, channeltest.New(all))
	var mu sync.Mutex
	last := map[string]string{}
	var handled sync.WaitGroup
	handled.Add(all)
	go func() {
		for msg := range l.Out {
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
	slow := func(string) error { time.Sleep(time.Second); return nil }
	inScene(t, app{unmarshal: slow}, Config{Concurrency: 2}, func(t *testing.T, l *scene) {
		l.deliver("a", "b")
		synctest.Wait() // a is offered
		l.Limit(0)
		time.Sleep(2 * time.Second)
		got, _ := l.take()
		assert.Empty(t, got)
		l.Limit(1)
		got, messages := l.take()
		assert.Equal(t, []string{"a"}, got)
		messages[0].Ack()
		_, messages = l.take()
		messages[0].Ack()
	})
}

// Where nothing is in flight, what goes back is in the queue before another session is opened.
func TestAPauseWaitsForWhatGoesBack(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 1}, func(t *testing.T, l *scene) {
		l.deliver("a")
		synctest.Wait() // it is offered
		l.Limit(0)
		began := time.Now()
		l.account.EndTakes = time.Second
		l.session.Retire(nil)
		assert.Equal(t, time.Second, time.Since(began), "the channel is closed")
		assert.Equal(t, []string{"nack 1"}, l.settled())
		got, _ := l.take()
		assert.Empty(t, got)
	})
}

// amqp091-go still has deliveries when the consumer has ended.
func TestAPauseGivesBackWhatWasNotReceived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(string) error { time.Sleep(time.Second); return nil }
		account := channeltest.New(8)
		account.Deliveries = make(chan amqp091.Delivery, 8)
		l := newScene(t, app{unmarshal: slow}, Config{Concurrency: 8}, account)
		defer l.close()
		l.deliver("a", "b", "c", "d", "e", "f", "g", "h")
		synctest.Wait() // the first is read
		l.Limit(0)
		l.session.Retire(nil)
		assert.Len(t, account.Settled(), 8)
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
		l := newScene(t, app{unmarshal: unmarshal}, Config{Concurrency: 1}, channeltest.New(8))
		l.deliver("hangs")
		synctest.Wait()
		l.stop()
		time.AfterFunc(time.Second, l.GiveUp)
		begin := time.Now()
		l.session.Retire(nil) // it does not wait: the broker takes the messages back when the channel is closed
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
		l := newScene(t, app{unmarshal: unmarshal}, Config{CloseTimeout: time.Second}, channeltest.New(8))
		l.deliver("hangs")
		synctest.Wait()
		l.stop()
		begin := time.Now()
		l.shutDown()
		assert.Equal(t, time.Second+GiveUpAfter+2*channel.AnswerTimeout, time.Since(begin))
		close(hang)
		<-l.Over
		l.session.Abandon()
	})
}

func TestTheBrokerCancelsAConsumer(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 2}, func(t *testing.T, l *scene) {
		l.deliver("a", "b", "c")
		_, messages := l.take()
		l.account.Cancels <- "tag"
		reason := l.session.Keep()
		require.ErrorIs(t, reason, channel.ErrCancelled)
		assert.ErrorContains(t, reason, "tag")
		messages[0].Ack()
		got, _ := l.take()
		assert.Empty(t, got, "the broker gives the others out again")
		l.session.Retire(reason)
		messages[1].Ack()
		assert.Equal(t, []string{"ack 1", "nack 3", "ack 2"}, l.settled())
	})
}

// A message that is held learns that its channel is lost. Its place is free when it is nacked, without a pause: the
// broker has given it out again.
func TestAMessageLearnsThatItsChannelIsLost(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 2}, func(t *testing.T, l *scene) {
		l.deliver("a", "b")
		_, messages := l.take()
		require.Len(t, messages, 2)
		require.NoError(t, msgctx.Lookup(messages[0]).Lost.Err())
		began := time.Now()
		messages[0].Nack() // and waits
		synctest.Wait()
		l.lose()
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
		assert.Equal(t, []string{"ack 1", "ack 2"}, l.settled())
	})
}
