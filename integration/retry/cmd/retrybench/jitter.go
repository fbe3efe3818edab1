package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	jitterName     = "jitter"
	jitterMessages = 2000
	jitterDelay    = 5 * time.Second
	jitterSpread   = 0.2
	jitterBin      = 100 * time.Millisecond
	jitterPatience = time.Minute
)

// A wave is messages that fail at the same moment, and come back from one tier with a jitter.
type wave struct {
	jitter float64

	mu       sync.Mutex
	arrived  int // for the first time
	all      chan struct{}
	failedAt map[string]time.Time
	backAt   map[string]time.Time
	twice    int
	early    int
	done     chan struct{}
}

func newWave(jitter float64) *wave {
	return &wave{jitter: jitter, all: make(chan struct{}), failedAt: map[string]time.Time{}, backAt: map[string]time.Time{}, done: make(chan struct{})}
}

// handle fails when all messages are in flight.
func (w *wave) handle(msg *message.Message) error {
	if _, retried := retry.ReadRecord(msg.Metadata); retried {
		w.back(msg.UUID)
		return nil
	}
	w.mu.Lock()
	if w.arrived++; w.arrived == jitterMessages {
		close(w.all)
	}
	w.mu.Unlock()
	<-w.all
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failedAt[msg.UUID] = time.Now()
	return errMeasured
}

func (w *wave) back(id string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, again := w.backAt[id]; again {
		w.twice++
		return
	}
	// While the clock of the broker's host is corrected, a tier may end 1% early.
	if now.Sub(w.failedAt[id]) < jitterDelay-jitterDelay/100-time.Millisecond {
		w.early++
	}
	if w.backAt[id] = now; len(w.backAt) == jitterMessages {
		close(w.done)
	}
}

// measure returns how the messages came back. Lost, doubled and early messages are an error.
func (w *wave) measure(uri string) (shape, error) {
	c := config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: backoff.Schedule{jitterDelay}, Jitter: w.jitter, Settings: rabbitmq.Settings{Prefix: prefix}}
	work := fmt.Sprintf("jitter-%06x", rand.N(1<<24))
	defer remove(uri, newBuilder(c).Topology(work))
	retries, err := config.Connect(c, nil, middleware.HandlerOptions{Concurrency: jitterMessages})
	if err != nil {
		return shape{}, err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	retries.AddConsumerHandler(router, jitterName, work, w.handle)
	stop, err := run(router)
	if err != nil {
		return shape{}, errors.Join(err, retries.Close())
	}
	defer func() { stop(); _ = retries.Close() }()
	messages := make([]*message.Message, jitterMessages)
	for i := range messages {
		messages[i] = message.NewMessage(fmt.Sprint(i), make([]byte, payloadBytes))
	}
	if err := retries.Publisher().Publish(work, messages...); err != nil {
		return shape{}, err
	}
	select {
	case <-w.done:
	case <-time.After(jitterPatience):
	}
	time.Sleep(time.Duration(float64(jitterDelay) * w.jitter)) // messages that come twice, from the longest lane too
	w.mu.Lock()
	defer w.mu.Unlock()
	if lost := jitterMessages - len(w.backAt); lost > 0 || w.twice > 0 || w.early > 0 {
		return shape{}, fmt.Errorf("%s %v: of %d messages %d were lost, %d came twice and %d early", jitterName, w.jitter, jitterMessages, lost, w.twice, w.early)
	}
	return w.shape(), nil
}

// shape is how evenly messages came back.
type shape struct {
	burst   time.Duration // from the first failure to the last
	lasted  time.Duration // from the first to the last that came back
	highest int           // count in jitterBin
}

func (w *wave) shape() shape {
	var failed, back []time.Time
	for id, at := range w.backAt {
		failed, back = append(failed, w.failedAt[id]), append(back, at)
	}
	slices.SortFunc(failed, time.Time.Compare)
	slices.SortFunc(back, time.Time.Compare)
	s := shape{burst: failed[len(failed)-1].Sub(failed[0]), lasted: back[len(back)-1].Sub(back[0])}
	bins := make([]int, s.lasted/jitterBin+1)
	for _, at := range back {
		bins[at.Sub(back[0])/jitterBin]++
	}
	s.highest = slices.Max(bins)
	return s
}

// measureJitter compares waves with and without jitter.
func measureJitter(uri string, rounds int) ([]string, error) {
	const mean = jitterMessages / float64(time.Duration(float64(jitterDelay)*jitterSpread)/jitterBin)
	fmt.Printf("\n%d messages fail in the same moment and wait on a tier of %v, %d rounds; highest count in %v, over %.0f, which is the mean "+
		"over %v\n\n", jitterMessages, jitterDelay, rounds, jitterBin, mean, time.Duration(float64(jitterDelay)*jitterSpread))
	fmt.Printf("%-14s %22s %22s %22s %22s\n", "", "fail within", "come back within", "highest count", "over the mean")
	var over []float64
	for _, jitter := range []float64{0, jitterSpread} {
		var bursts, lasted, highest []float64
		over = nil
		for range rounds {
			s, err := newWave(jitter).measure(uri)
			if err != nil {
				return nil, err
			}
			bursts, lasted = append(bursts, float64(s.burst.Milliseconds())), append(lasted, float64(s.lasted.Milliseconds()))
			highest, over = append(highest, float64(s.highest)), append(over, float64(s.highest)/mean)
		}
		fmt.Printf("%-14s %19.0f ms %19.0f ms %22.0f %10.2f (%.2f-%.2f)\n", fmt.Sprintf("jitter %v", jitter),
			median(bursts), median(lasted), median(highest), median(over), slices.Min(over), slices.Max(over))
	}
	return []string{claim("jitter_highest_over_mean", "", median(over), 1.5)}, nil
}
