package door

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
)

// A peer is a process with a handler on each of the queues webhooks and mails.
type peer struct {
	t *testing.T
	*control
	logger          *watermill.CaptureLoggerAdapter
	webhooks, mails *gate.Gate
}

func newPeer(t *testing.T) peer {
	logger := watermill.NewCaptureLogger()
	p := peer{t, &control{logger: logger}, logger, gate.New(16), gate.New(16)}
	p.keyed = []keyed{{"deliver", "webhooks", p.webhooks}, {"mail", "mails", p.mails}}
	return p
}

// do carries out a command that has come to the process itself.
func (p peer) do(key string, calls int, at int64, queue ...string) (decided int) {
	p.t.Helper()
	r := command.Request{Do: command.Limit, Key: key, Calls: calls, Lasts: time.Hour, At: at}
	if len(queue) > 0 {
		r.Queue = queue[0]
	}
	decided, _, err := p.limit(r, false)
	require.NoError(p.t, err)
	return decided
}

// keysOf are the limited ones, as "7 paused 0".
func keysOf(g *gate.Gate) (all []string) {
	for _, key := range g.Keys() {
		all = append(all, fmt.Sprint(key.Key, " ", key.Paused, " ", key.Limit))
	}
	return all
}

func TestACommandIsForTheHandlersOfItsQueue(t *testing.T) {
	p := newPeer(t)
	assert.Equal(t, 2, p.do("7", 0, 1))
	assert.Equal(t, 1, p.do("7", 2, 2, "webhooks"))
	assert.Equal(t, []string{"7 limited 2"}, keysOf(p.webhooks))
	assert.Equal(t, []string{"7 paused 0"}, keysOf(p.mails))
	assert.Equal(t, 1, p.do("7", command.NoLimit, 3, "mails"))
	assert.Zero(t, p.do("7", command.NoLimit, 4, "mails"), "it has ended")
	assert.Zero(t, p.do("8", command.NoLimit, 5))
	assert.Equal(t, []string{"7 limited 2"}, keysOf(p.webhooks))
	assert.Empty(t, keysOf(p.mails))
	assert.Equal(t, 2, p.do("7", 1, 6))
	assert.Equal(t, []string{"7 limited 1"}, keysOf(p.mails))

	var lines []string
	for _, l := range p.logger.Captured()[watermill.InfoLogLevel] {
		lines = append(lines, l.Msg)
	}
	const did = "An operator has %s a key"
	assert.Equal(t, []string{fmt.Sprintf(did, "paused"), fmt.Sprintf(did, "limited"), fmt.Sprintf(did, "resumed"),
		fmt.Sprintf(did, "limited")}, lines)
}

// What processes tell one another may be older than what has come meanwhile, and a process may have missed a command.
func TestTheLatestDecisionHolds(t *testing.T) {
	for name, from := range map[string]struct{ pausedAt, resumedAt int64 }{
		"clocks are right":                         {1000, 2000},
		"the second command's clock is far behind": {2000, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			was, is := newPeer(t), newPeer(t)
			was.do("7", 0, from.pausedAt)
			is.do("7", 0, from.pausedAt)
			is.do("7", command.NoLimit, from.resumedAt)
			old := was.told()
			is.hear(old)
			assert.Empty(t, keysOf(is.webhooks), "what it has heard from the operator is the latest")
			for range 2 {
				was.hear(is.told())
				assert.Empty(t, keysOf(was.webhooks), "it was away when the key was resumed")
			}
			assert.Len(t, was.logger.Captured()[watermill.InfoLogLevel], 2, "paused, and resumed once")
			begins := newPeer(t)
			begins.hear(is.told())
			begins.hear(old)
			assert.Empty(t, keysOf(begins.webhooks), "the older answer comes last")
			is.do("7", 2, from.pausedAt)
			for _, p := range []peer{was, begins} {
				p.hear(is.told())
				p.hear(old)
				assert.Equal(t, []string{"7 limited 2"}, keysOf(p.webhooks))
			}
		})
	}
}

// TestTheLatestDecisionHoldsForEachQueue: what is about all queues comes after a newer decision about one of them.
func TestTheLatestDecisionHoldsForEachQueue(t *testing.T) {
	p := newPeer(t)
	p.hear([]command.Request{
		{Do: command.Limit, Key: "7", Lasts: time.Hour, Queue: "webhooks", Calls: 2, At: 2}, {Do: command.Limit, Key: "7", Lasts: time.Hour, At: 1},
	})
	assert.Equal(t, []string{"7 limited 2"}, keysOf(p.webhooks))
	assert.Equal(t, []string{"7 paused 0"}, keysOf(p.mails))
}

// TestAShortLimitOfOneQueueEndsOverALongerOneOfAll: what was decided before holds again. An end is a decision too.
func TestAShortLimitOfOneQueueEndsOverALongerOneOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.hear([]command.Request{
			{Do: command.Limit, Key: "7", Lasts: time.Hour, At: 1},
			{Do: command.Limit, Key: "7", Lasts: time.Minute, Queue: "webhooks", Calls: 2, At: 2},
		})
		assert.Equal(t, []string{"7 limited 2"}, keysOf(p.webhooks))
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"7 paused 0"}, keysOf(p.webhooks))
		p.do("7", command.NoLimit, 3, "webhooks")
		assert.Empty(t, keysOf(p.webhooks))
		assert.Equal(t, []string{"7 paused 0"}, keysOf(p.mails))
	})
}

// Processes tell how long a limit still lasts: the clock of one is not that of another.
func TestALimitLastsAsLongWhateverTheClockShows(t *testing.T) {
	var told []command.Request
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.do("7", 0, 1)
		time.Sleep(20 * time.Minute)
		told = p.told()
		require.Len(t, told, 1)
		assert.Equal(t, 40*time.Minute, told[0].Lasts)
	})
	synctest.Test(t, func(t *testing.T) { // its clock is 20 minutes behind, as each of these tests begins at one time
		p := newPeer(t)
		p.hear(told)
		time.Sleep(40*time.Minute - 1)
		assert.Equal(t, []string{"7 paused 0"}, keysOf(p.webhooks))
		time.Sleep(time.Nanosecond)
		assert.Empty(t, keysOf(p.webhooks))
		assert.Empty(t, p.told())
	})
}

func TestLimitsAreBounded(t *testing.T) {
	p := newPeer(t)
	for i := range 20 {
		p.do(fmt.Sprint("key ", i), 0, int64(i))
	}
	_, _, err := p.limit(command.Request{Do: command.Limit, Key: "one more", Lasts: time.Hour}, false)
	require.EqualError(t, err, "20 keys are limited by an operator, and no more can be: resume one of them first")
	p.do("key 7", 2, 30)
	for i := range 999 {
		p.do(fmt.Sprint("key ", i), command.NoLimit, int64(100+i))
	}
	assert.Empty(t, keysOf(p.webhooks))
	p.do("8", 0, 5000)
	assert.Equal(t, 1000, len(p.told()), "one is limited, and 999 were resumed")
	p.do("one more", command.NoLimit, 5001)
	p.hear([]command.Request{{Key: "old", Calls: command.NoLimit, Lasts: time.Hour, At: 5}})
	told := p.told()
	assert.Equal(t, 1001, len(told), "of 1001 that were resumed the last 1000 are told")
	assert.Equal(t, "key 0", told[0].Key, "an older end replaces no newer one")
}

// Other apps of the prefix limit the keys of their queues. A limit that is refused changes nothing: the end of an older
// one is kept.
func TestLimitsOfOtherQueuesAreNotThoseOfTheProcess(t *testing.T) {
	p := newPeer(t)
	p.do("one more", command.NoLimit, 1)
	for i := range 1000 {
		p.do(fmt.Sprint("key ", i), 0, 1, "invoices")
	}
	_, _, err := p.limit(command.Request{Queue: "invoices", Key: "one more", Lasts: time.Hour, At: 2}, false)
	require.Error(t, err)
	for i := range 20 {
		p.do(fmt.Sprint("own ", i), 0, 1)
	}
	assert.Len(t, keysOf(p.webhooks), 20)
	_, _, err = p.limit(command.Request{Key: "one more", Lasts: time.Hour, At: 2}, false)
	require.Error(t, err)
	assert.Equal(t, 1021, len(p.told()))
}

// What was resumed stays so, however many others are resumed afterwards.
func TestAnEndOutlastsItsLimit(t *testing.T) {
	was, is := newPeer(t), newPeer(t)
	was.do("8", 0, 1)
	is.do("8", 0, 1)
	is.do("8", command.NoLimit, 2)
	is.do("7", 0, 3)
	is.do("7", command.NoLimit, 4, "mails")
	others := func(count int) {
		for i := range count {
			is.do(fmt.Sprint("key ", i), command.NoLimit, int64(5+i))
		}
	}
	others(500)
	is.hear(was.told())
	assert.Equal(t, []string{"7 paused 0"}, keysOf(is.webhooks), "a process that was away has told the limit of 8")
	others(1100)
	assert.Equal(t, []string{"7 paused 0"}, keysOf(is.webhooks))
	assert.Empty(t, keysOf(is.mails))
	for i := range 999 {
		is.do("7", command.NoLimit, 5000, fmt.Sprint("queue ", i))
	}
	_, _, err := is.limit(command.Request{Queue: "one more", Key: "7", Calls: command.NoLimit, Lasts: time.Hour}, false)
	require.Error(t, err)
	is.do("7", command.NoLimit, 5001)
	assert.Empty(t, keysOf(is.webhooks))
}

// Who can publish commands can tell of limits, too.
func TestWhatNoCommandCanHaveIsNotHeard(t *testing.T) {
	now := time.Now()
	for name, r := range map[string]command.Request{
		"the clock is more than a day ahead": {Key: "7", Lasts: time.Hour, At: now.Add(25 * time.Hour).UnixNano()},
		"no later one can end it":            {Key: "7", Lasts: time.Hour, At: math.MaxInt64},
		"no time":                            {Key: "7", Lasts: time.Hour},
		"no key":                             {Lasts: time.Hour, At: 1},
		"fewer calls than none":              {Key: "7", Calls: -2, Lasts: time.Hour, At: 1},
		"an end that lies back":              {Key: "7", Lasts: -1, At: 1},
		"for too long":                       {Key: "7", Lasts: command.LongestLimit + 1, At: 1},
		"a queue that no broker has":         {Key: "7", Lasts: time.Hour, At: 1, Queue: strings.Repeat("q", 256)},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t)
			p.hear([]command.Request{r})
			assert.Empty(t, p.limits)
			r.Do = command.Limit
			body, err := json.Marshal(r)
			require.NoError(t, err)
			_, err = command.Parse(body)
			assert.Error(t, err, "nor is it carried out")
		})
	}
	p := newPeer(t)
	p.hear([]command.Request{{Key: "7", Lasts: time.Hour, At: now.Add(23 * time.Hour).UnixNano(), Told: make([]command.Request, 9)}})
	assert.Equal(t, []string{"7 paused 0"}, keysOf(p.webhooks))
	assert.Empty(t, p.limits[0].Told, "it is not told with all that came with it")
	p.do("7", command.NoLimit, now.UnixNano())
	assert.Empty(t, keysOf(p.webhooks))
}

// Watermill's RunHandlers adds a handler again, with a gate of its own.
func TestAHandlerThatIsAddedAgainHasItsLimits(t *testing.T) {
	p := newPeer(t)
	p.asked.Do(func() {})
	p.do("7", 0, 1)
	p.webhooks.Attach(valve{})()
	p.addKeyed(keyed{"other", "other", gate.New(16)}) // what has ended is forgotten
	p.do("8", 0, 2)
	again := gate.New(16)
	p.addKeyed(keyed{"deliver", "webhooks", again})
	assert.Equal(t, []string{"7 paused 0", "8 paused 0"}, keysOf(again))
}

type valve struct{}

func (valve) Limit(int)  {}
func (valve) Taken() int { return 0 }
