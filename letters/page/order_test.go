package page_test

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/retry"
)

type asker = command.Asker

// orderedStore also asks processes.
type orderedStore struct {
	*store
	asker
}

// setupOrder returns a page whose work queue has partitions, and what is asked.
func setupOrder(t *testing.T, name string, asked command.Asked, err error) (site, *[]command.Request) {
	t.Helper()
	var requests []command.Request
	return setup(t, some(), func(c *page.Config) {
		c.Store = orderedStore{c.Store.(*store), func(_ context.Context, r command.Request, _ time.Duration) (command.Asked, error) {
			requests = append(requests, r)
			return asked, err
		}}
		c.Status = func(context.Context) (letters.Status, error) {
			s := status()
			with := s.Queues[0]
			with.Name = name
			with.Partitions = 4
			s.Queues = append(s.Queues, with)
			return s, nil
		}
	}), &requests
}

func answerOf(blocked ...command.Blocked) command.Answer {
	return command.Answer{Host: "shop-1", PID: 7, Handlers: []command.Handler{{
		Name: "billing", Partitions: []command.Partition{{Queue: "sales"}, {Queue: "sales.order.3", Blocked: blocked}},
	}}}
}

// TestBlockedKeysOnlyWithPartitions: the page asks only where an answer can be, and no view of the board waits for it.
func TestBlockedKeysOnlyWithPartitions(t *testing.T) {
	s, requests := setupOrder(t, "sales", command.Asked{Prefix: "retry"}, nil)
	board := body(t, s.get(""), http.StatusOK)
	assert.Contains(t, board, `href="order?queue=sales"`)
	assert.Contains(t, board, "of 4 partitions")
	assert.NotContains(t, board, "order?queue=orders")
	for _, other := range []string{"orders", "sales.order.3", "orders.dead", ""} {
		body(t, s.get("order?queue="+other), http.StatusNotFound)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, s.post("order?queue=sales", nil).Code)
	assert.Empty(t, *requests)
	body(t, s.get("order?queue=sales"), http.StatusOK)
	assert.Equal(t, []command.Request{{Queue: "sales", Do: command.Status}}, *requests, "a look changes nothing")

	without := setup(t, some(), func(c *page.Config) {
		c.Status = func(context.Context) (letters.Status, error) {
			s := status()
			s.Queues[0].Partitions = 4
			return s, nil
		}
	})
	assert.NotContains(t, body(t, without.get(""), http.StatusOK), "Blocked keys", "this store cannot ask")
	body(t, without.get("order?queue=orders"), http.StatusNotFound)
}

func TestBlockedKeysAreListed(t *testing.T) {
	now := time.Now()
	many := make([]command.Blocked, 250)
	for i := range many {
		many[i] = command.Blocked{Key: "later", Since: now}
	}
	first := command.Blocked{Key: "customer-7", MessageUUID: "u-1", Since: now.Add(-3 * time.Minute), DeadReason: retry.DeadReasonExhausted,
		Reason: "the bank is down"}
	last := answerOf(append(many, first)...)
	last.Unlisted = 10
	s, _ := setupOrder(t, "sales", command.Asked{Prefix: "retry", Processes: 4, Answers: []command.Answer{last, answerOf(), {Host: "shop-2", PID: 8, Error: "no room"}}}, nil)
	text := body(t, s.get("order?queue=sales"), http.StatusOK)
	at := 0
	for _, want := range []string{
		"3 processes have answered.", "shop-2/8: no room", "1 process has not answered.", "customer-7", "the bank is down", "exhausted", "3 min ago", "u-1",
		"sales.order.3", "billing shop-1/7", "wmretry order retry sales customer-7\nwmretry order skip sales customer-7<", "later", "61 further messages are blocked.",
	} {
		found := strings.Index(text, want)
		assert.Greater(t, found, at, want)
		at = found
	}
	assert.Equal(t, 200, strings.Count(text, "<pre"))
}

func TestNoProcessAnswers(t *testing.T) {
	for want, with := range map[string]struct {
		asked command.Asked
		err   error
	}{
		"No process with a handler that has Order.Partitions has answered. So it is not known which keys are blocked.": {err: command.ErrNoProcess},
		"No process with a handler that has Order.Partitions has answered.":                                            {asked: command.Asked{Processes: 2}},
		"No process that has answered has a handler with Order.Partitions on this work queue.":                         {asked: command.Asked{Answers: make([]command.Answer, 1)}},
	} {
		s, _ := setupOrder(t, "sales", with.asked, with.err)
		text := body(t, s.get("order?queue=sales"), http.StatusOK)
		assert.Contains(t, text, want)
		assert.NotContains(t, text, "have no blocked key")
	}
	s, _ := setupOrder(t, "sales", command.Asked{Answers: []command.Answer{answerOf()}}, nil)
	assert.Contains(t, body(t, s.get("order?queue=sales"), http.StatusOK), "The processes that have answered have no blocked key.")
	s, _ = setupOrder(t, "sales", command.Asked{}, context.DeadlineExceeded)
	assert.Contains(t, body(t, s.get("order?queue=sales"), http.StatusBadGateway), "did not answer in time")
}

func TestHostileBlockedKeysAreEscaped(t *testing.T) {
	const hostile = "\"'><script>alert(1)</script>\x00\x1b[31m\u202e</title></pre>{{.}}"
	a := answerOf(command.Blocked{Key: hostile, MessageUUID: hostile, Reason: hostile, DeadReason: hostile}, command.Blocked{Key: strings.Repeat("k", 1<<20)})
	a.Host, a.Error, a.Handlers[0].Name, a.Handlers[0].Partitions[1].Queue = hostile, hostile, hostile, hostile
	s, _ := setupOrder(t, hostile, command.Asked{Prefix: "retry", Answers: []command.Answer{a}}, nil)
	for _, address := range []string{"", "order?queue=" + url.QueryEscape(hostile)} {
		text := body(t, s.get(address), http.StatusOK)
		assert.NotRegexp(t, "<script>|\u202e|\x1b|\x00|'>", text, address)
		assert.Contains(t, text, "&lt;script&gt;", address)
		assert.NotContains(t, text, "<pre", "a command would have another key")
		assert.Less(t, len(text), 1<<17)
	}
}

// TestCommandsOfBlockedKeys: a shell gives a command the key as it is, and runs nothing of it.
func TestCommandsOfBlockedKeys(t *testing.T) {
	for key, want := range map[string][]string{
		"customer-7":             {"customer-7"},
		"":                       {""},
		"-7":                     {"--", "sales", "-7"},
		"a b  $(id) `id` 'x' &<": {"a b  $(id) `id` 'x' &<"},
		"ключ;id":                {"ключ;id"},
	} {
		s, _ := setupOrder(t, "sales", command.Asked{Prefix: "shop", Answers: []command.Answer{answerOf(command.Blocked{Key: key})}}, nil)
		text := body(t, s.get("order?queue=sales"), http.StatusOK)
		_, commands, found := strings.Cut(text, "<pre tabindex=\"0\" aria-label=\"Commands\">")
		require.True(t, found, text)
		commands, _, _ = strings.Cut(commands, "</pre>")
		output, err := exec.Command("sh", "-c", `wmretry() { printf '%s\n' "$@"; }; `+"\n"+html.UnescapeString(commands)).Output()
		require.NoError(t, err)
		if len(want) == 1 {
			want = []string{"sales", want[0]}
		}
		line := strings.Join(want, "\n") + "\n"
		assert.Equal(t, "order\nretry\n--prefix\nshop\n"+line+"order\nskip\n--prefix\nshop\n"+line, string(output))
		assert.Equal(t, key == "", strings.Contains(text, "all blocked messages without a key"))
	}
}

// TestKeysAreListed: the limited ones first. A look changes nothing.
func TestKeysAreListed(t *testing.T) {
	of := func(name string, health retry.KeyHealth) command.Key {
		return command.Key{KeyState: gate.KeyState{Key: name, KeyHealth: health}, Queue: "webhooks", Handler: "deliver"}
	}
	keys := func(all ...command.Key) command.Answer {
		return command.Answer{Host: "shop-1", PID: 7, Keyed: 1, Keys: all}
	}
	many := make([]command.Key, 250)
	for i := range many {
		many[i] = of("fast", retry.KeyHealth{Parked: 1})
	}
	hostile := "<script>\u202e\x1b" + strings.Repeat("k", 1<<18)
	s, requests := setupOrder(t, "sales", command.Asked{Processes: 3, Answers: []command.Answer{
		keys(append(many, of("acme", retry.KeyHealth{Parked: 1234}), of("7", retry.KeyHealth{Paused: "slow", Limit: 7, Parked: 30}))...),
		keys(of(hostile, retry.KeyHealth{Paused: "paused", Until: time.Now().Add(time.Hour + time.Second)})),
	}}, nil)
	assert.Contains(t, body(t, s.get(""), http.StatusOK), `href="keys"`)
	assert.Empty(t, *requests, "no view of the board waits for processes")
	text := body(t, s.get("keys"), http.StatusOK)
	assert.Equal(t, []command.Request{{Do: command.Keys}}, *requests)
	at := 0
	for _, want := range []string{
		"2 processes have answered.", "1 process has not answered.", "&lt;script&gt;", "0 calls at most, 1 h", "webhooks", "deliver shop-1/7", ">7<", "slow",
		"7 calls at most · had to wait 30 times", "acme", "had to wait 1,234 times", "fast", "53 further keys are not shown.",
	} {
		found := strings.Index(text, want)
		assert.Greater(t, found, at, want)
		at = found
	}
	assert.NotRegexp(t, "<script>|\u202e|\x1b", text)
	assert.Less(t, len(text), 1<<17)

	for i := range many {
		many[i] = of("flood", retry.KeyHealth{Paused: "retry after", Parked: 5000})
	}
	s, _ = setupOrder(t, "sales", command.Asked{Answers: []command.Answer{
		keys(append(many, of("8", retry.KeyHealth{Paused: "paused"}), of("9", retry.KeyHealth{Paused: "limited"}))...),
	}}, nil)
	text = body(t, s.get("keys"), http.StatusOK)
	assert.Contains(t, text, ">8<", "a flood of keys hides no decision of an operator")
	assert.Contains(t, text, ">9<")

	s, _ = setupOrder(t, "sales", command.Asked{}, command.ErrNoProcess)
	assert.Contains(t, body(t, s.get("keys"), http.StatusOK), "No process with a handler that has Breaker.Key has answered.")
	s, _ = setupOrder(t, "sales", command.Asked{Answers: []command.Answer{keys()}}, nil)
	assert.Contains(t, body(t, s.get("keys"), http.StatusOK), "No key is limited, and none had to wait.")
	without := setup(t, some(), nil)
	assert.NotContains(t, body(t, without.get(""), http.StatusOK), `href="keys"`)
	body(t, without.get("keys"), http.StatusNotFound)
}
