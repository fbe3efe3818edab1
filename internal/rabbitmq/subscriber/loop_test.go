package subscriber

import (
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// The consumer would otherwise fetch messages that no handler gets, until its connection is closed.
func TestALoopThatIsStoppedBeforeItRunsEndsItsSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, Config{Concurrency: 2}, newFakeChannel(8))
		defer l.close()
		l.deliver("a")
		l.stop()
		l.loops[0].run(l.session)
		assert.Equal(t, []string{"nack 1"}, l.settled())
		<-l.session.closed
	})
}

// A pause and a stop may come when a session has ended for another limit, and before the next one.
func TestWhatASessionLeavesForTheNextOneGoesBackWhereThereIsNone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(l *scene){
		"a pause": func(l *scene) {
			l.Limit(0)
			n, err := l.loops[0].open(l.ctx, &wire.Connection{Client: &amqp091.Connection{}})
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
				l := newLineOf(t, &declarer{}, Config{Concurrency: 2, Prefetch: 8}, newFakeChannel(8))
				l.deliver("a", "b", "c", "d")
				_, messages := l.take()
				l.Limit(1)
				l.retire(errLimit)
				messages[0].Ack()
				messages[1].Ack()
				began := time.Now()
				end(l)
				assert.Zero(t, time.Since(began))
				assert.ElementsMatch(t, []string{"acks 2", "nack 3", "nack 4"}, l.settled())
				<-l.session.closed
				if !l.stopped() {
					l.close()
				}
			})
		})
	}
}
