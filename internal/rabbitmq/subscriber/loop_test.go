package subscriber

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// The consumer would otherwise fetch messages that no handler gets, until its connection is closed.
func TestALoopThatIsStoppedBeforeItRunsEndsItsSession(t *testing.T) {
	inScene(t, app{}, Config{Concurrency: 2}, func(t *testing.T, l *scene) {
		l.deliver("a")
		l.stop()
		l.run(l.session)
		assert.Equal(t, []string{"nack 1"}, l.settled())
		<-l.session.Lost.Done()
	})
}

// A pause and a stop may come when a session has ended for another limit, and before the next one.
func TestWhatASessionLeavesForTheNextOneGoesBackWhereThereIsNone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(l *scene){
		"a pause": func(l *scene) {
			l.Limit(0)
			n, err := l.plain.Loop.open(l.Stopping, newConnection())
			require.NoError(t, err)
			require.Nil(t, n)
		},
		"a stop": func(l *scene) {
			l.stop()
			l.shutDown()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newScene(t, &declarer{}, Config{Concurrency: 2, Prefetch: 8}, channeltest.New(8))
				l.deliver("a", "b", "c", "d")
				_, messages := l.take()
				l.Limit(1)
				l.session.Retire(errLimit)
				messages[0].Ack()
				messages[1].Ack()
				began := time.Now()
				end(l)
				assert.Zero(t, time.Since(began))
				assert.ElementsMatch(t, []string{"ack 1", "ack 2", "nack 3", "nack 4"}, l.settled())
				<-l.session.Lost.Done()
				if l.Stopping.Err() == nil {
					l.close()
				}
			})
		})
	}
}

func TestLoopsThatCannotBeOpenedWaitTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := failures{pause: wire.Backoff{Initial: time.Second, Max: 4 * time.Second}}
		assert.Negative(t, f.wait())
		for _, most := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
			f.add()
			pause := f.wait()
			assert.GreaterOrEqual(t, pause, most/2)
			assert.LessOrEqual(t, pause, most)
			time.Sleep(pause / 2)
			f.add() // another one that was opened at the same time
			assert.Equal(t, pause-pause/2, f.wait())
			time.Sleep(pause)
		}
		time.Sleep(5 * time.Second)
		f.add()
		assert.LessOrEqual(t, f.wait(), time.Second, "they could be opened meanwhile")
	})
}

// A standing handler declares nothing until it is released.
type standing struct {
	app
	released chan struct{}
}

func (s standing) Declare(*Declaration, string) error {
	<-s.released
	return nil
}

// A handler that is paused at the start declares, too. What stops the subscription ends that.
func TestAPausedLoopDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		l := newScene(t, standing{released: released}, Config{}, channeltest.New(8))
		defer l.close()
		l.Limit(0)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(ErrClosed) })
		began := time.Now()
		_, err := l.plain.Loop.open(ctx, newConnection())
		assert.ErrorIs(t, err, ErrClosed)
		assert.Equal(t, time.Second, time.Since(began))

		close(released)
		opened, err := l.plain.Loop.open(t.Context(), newConnection())
		assert.NoError(t, err)
		assert.Nil(t, opened, "it is paused")
	})
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	var c Config
	c.setDefaults()
	c.Gate = nil
	assert.Equal(t, Config{Concurrency: 16, Prefetch: 16, CloseTimeout: 30 * time.Second, LongestNack: 5 * time.Second}, c)
}
