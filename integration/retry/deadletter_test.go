package retry_test

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// killed is the environment variable with the queue whose messages kill a child process of the tests.
const killed = "KILLED_BY_QUEUE"

func TestMain(m *testing.M) {
	if queue := os.Getenv(killed); queue != "" {
		dieOf(queue)
	}
	os.Exit(m.Run())
}

// dieOf consumes the queue with an ordinary app until a message kills this process.
func dieOf(queue string) {
	rabbit, err := config.NewBuilder(config.Config{
		AMQP: amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL")), Policy: retry.Policy{Schedule: backoff.Constant(100*time.Millisecond, 2)}, Settings: rabbitmq.Settings{Prefix: "retry_" + queue},
	})
	if err != nil {
		panic(err)
	}
	tiered, err := rabbit.NewTieredRetry(nil)
	if err != nil {
		panic(err)
	}
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddConsumerHandler("killed", queue, subscriber, func(msg *message.Message) error {
		if record, _ := retry.ReadRecord(msg.Metadata); record.Failures == 0 {
			return errDown // it waits on a tier once: x-death then has two entries
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}).AddMiddleware(tiered.Middleware)
	panic(router.Run(context.Background()))
}

// deadLetters reads the dead letters of a queue as an app would.
func deadLetters(t *testing.T, queue string) <-chan *message.Message {
	t.Helper()
	reader, err := config.DeadLetterSubscriberConfig(amqp.NewDurableQueueConfig(broker.URL(t)), "")
	require.NoError(t, err)
	subscriber, err := amqp.NewSubscriber(reader, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	letters, err := subscriber.Subscribe(t.Context(), queue)
	require.NoError(t, err)
	return letters
}

// TestMessageThatKillsItsProcessIsDeadLettered by the broker's delivery limit, and the dead letter contains the reason.
func TestMessageThatKillsItsProcessIsDeadLettered(t *testing.T) {
	t.Parallel()
	queue := broker.Name(t, "deadly")
	broker.Clean(t, queue)
	a := testapp.NewParts(t, func(b *config.Config) {
		b.Prefix = "retry_" + queue
		b.Policy.Schedule = backoff.Constant(100*time.Millisecond, 2)
	})
	a.Declare(queue)
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	letters := deadLetters(t, queue)

	processes := 0
	var letter *message.Message
	for letter == nil {
		require.Less(t, processes, 40, "the delivery limit is 20")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), killed+"="+queue)
		require.NoError(t, child.Start())
		died := make(chan error, 1)
		go func() { died <- child.Wait() }()
		select {
		case <-died:
			processes++
		case letter = <-letters:
			cancel()
			<-died
		}
		cancel()
	}
	record, ok := retry.ReadRecord(letter.Metadata)
	require.True(t, ok)
	assert.EqualValues(t, "delivery_limit", record.DeadReason)
	assert.Equal(t, 2, record.Failures, "one failure of the handler, one of the broker")
	assert.Equal(t, queue, record.Topic)
	assert.Equal(t, id0, letter.UUID)
	assert.Equal(t, "order "+id0, string(letter.Payload))
	assert.WithinDuration(t, time.Now(), record.LastFailedAt, time.Minute)
	assert.GreaterOrEqual(t, processes, 20)
	letter.Ack()
	t.Logf("dead-lettered after %d processes", processes)
}

const id0 = "00000"

func TestDeadLettersAreReadAsTheOriginalMessages(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	a.Handle(queue, 1, func(*message.Message) error { return backoff.Permanent(errDown) })
	a.Run()
	testapp.Send(t, "", queue, testapp.Orders(3)...)
	letters := deadLetters(t, queue)
	seen := testapp.NewLedger()
	for range 3 {
		letter := broker.Receive(t, letters, "a dead letter")
		seen.Add(letter.UUID)
		record, ok := retry.ReadRecord(letter.Metadata)
		require.True(t, ok)
		assert.Equal(t, retry.DeadReasonPermanent, record.DeadReason)
		assert.Equal(t, "t"+letter.UUID, letter.Metadata["trace"])
		assert.Equal(t, "order "+letter.UUID, string(letter.Payload))
		letter.Ack()
	}
	assert.Empty(t, seen.Twice())
	broker.Eventually(t, 60*time.Second, func() bool {
		info, err := broker.Management(t).GetQueue("/", queue+".dead")
		return err == nil && info.Messages == 0
	}, "the acknowledged dead letters are removed")
}
