// Package proof holds the model of RabbitMQ against a real one: random scripts get the same answers from both, and both
// have the same state after each command.
package proof

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

const (
	scripts  = 50
	together = 4                // scripts that run at the same time
	again    = 2                // how often a script that differs is run again
	soon     = 10 * time.Second // a script whose state differs for so long is run again alone
)

// A line is what a broker answers to a command, and what it has then.
type line struct{ answer, state string }

// TestModel runs scripts with the broker at AMQP_URL: PROOF_SCRIPTS of them, from PROOF_SEED on.
//
// A real broker has several orders of events for one script, the model has one of them. So a script that differs is run
// again, alone. The model is wrong when it differs each time.
func TestModel(t *testing.T) {
	host := newHost(t)
	type run struct {
		script
		lines   []line
		differs string
	}
	runs := make([]*run, number("PROOF_SCRIPTS", scripts))
	for i := range runs {
		sc := scriptOf(uint64(number("PROOF_SEED", 1) + i))
		runs[i] = &run{script: sc, lines: onModel(t, host.rules, sc)}
	}
	var running sync.WaitGroup
	next := make(chan *run)
	for range together {
		running.Go(func() {
			for r := range next {
				r.differs = host.compare(r.script, r.lines, 0, false)
			}
		})
	}
	for _, r := range runs {
		next <- r
	}
	close(next)
	running.Wait()
	for _, r := range runs {
		for i := 0; i < number("PROOF_AGAIN", again) && r.differs != ""; i++ {
			t.Logf("script %d differs, and runs again", r.seed)
			r.differs = host.compare(r.script, r.lines, i+1, i+1 >= again)
		}
		if r.differs != "" {
			t.Errorf("script %d: the model of RabbitMQ %s differs: %s", r.seed, host.rules.Version, r.differs)
		}
	}
}

// TestTheLargestMessage: the broker refuses a larger one before anything else that is wrong with it.
func TestTheLargestMessage(t *testing.T) {
	h := newHost(t)
	largest := 128 << 20
	if h.rules.Version > "4" {
		largest = 16 << 20
	}
	var sc script
	for _, row := range []struct {
		exchange string
		size     int
	}{{"", largest}, {"", largest + 1}, {"missing", largest + 1}} {
		sc.steps = append(sc.steps, step{fmt.Sprint(row), func(s *side) string {
			return s.publish(0, row.exchange, "nowhere", false, amqp091.Publishing{Body: make([]byte, row.size)})
		}})
	}
	lines := onModel(t, h.rules, sc)
	require.Contains(t, lines[1].answer, "message size")
	require.Empty(t, h.compare(sc, lines, 0, true))
}

// enough returns when a script has waited long enough for a state. The last run of it waits as long as the machine needs.
func enough(last bool) func() bool {
	at := time.Now().Add(soon)
	if !last {
		return func() bool { return time.Now().After(at) }
	}
	patience := broker.NewPatience(time.Second)
	return func() bool {
		select {
		case <-patience.Check.C:
			return patience.Over()
		default:
			return false
		}
	}
}

// onModel returns what the model answers.
func onModel(t *testing.T, rules model.Rules, sc script) (lines []line) {
	synctest.Test(t, func(*testing.T) {
		b := model.New(model.Config{Rules: rules, Seed: sc.seed})
		s := &side{prefix: "model.", vhost: "/", url: "amqp://guest:guest@model/", dial: b.Dial, forgets: rules.Version > "4"}
		s.policy = func(pattern string, definition map[string]any) string {
			p := model.Policy{Pattern: regexp.MustCompile(pattern), Definition: definition}
			if len(definition) == 0 {
				p.Pattern = nil
			}
			b.SetPolicy("policy", p)
			return "ok"
		}
		rest := func() {
			time.Sleep(10 * ttl * time.Millisecond)
			synctest.Wait()
		}
		for _, step := range sc.steps {
			answer := step.run(s)
			rest()
			lines = append(lines, line{answer, s.state(sc.queues)})
		}
		s.cut(clients)
		rest()
		b.Stop()
	})
	return lines
}

// host is a virtual host of the real broker.
type host struct {
	client *rabbithole.Client
	name   string
	uri    string
	rules  model.Rules
}

func newHost(t *testing.T) *host {
	client := broker.Management(t)
	uri, remove, err := broker.Host(client, broker.URL(t), "proof")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, remove()) })
	h := &host{client: client, name: uri[strings.LastIndex(uri, "/")+1:], uri: uri}
	version, _ := broker.Connect(t).Properties["version"].(string)
	for _, rules := range model.Versions {
		if number, err := generation(rules.Version); err == nil && number <= must(generation(version)) {
			h.rules = rules
		}
	}
	require.NotEmpty(t, h.rules.Version, "the model has no rules for RabbitMQ %s", version)
	return h
}

// compare runs a script with the real broker, and returns how it differs from the lines of the model. The broker may be
// late: the state is read until it is equal, or enough time has passed.
func (h *host) compare(sc script, lines []line, run int, last bool) (differs string) {
	s := &side{prefix: fmt.Sprintf("s%dr%d.", sc.seed, run), vhost: h.name, url: h.uri, dial: net.Dial,
		forgets: h.rules.Version > "4"}
	s.policy = func(pattern string, definition map[string]any) string { return h.policy(s.prefix, pattern, definition) }
	defer s.clean(sc.queues)
	reached := func(at int) bool {
		var state string
		for over := enough(last); ; time.Sleep(time.Millisecond) {
			if state = s.state(sc.queues); state == lines[at].state {
				return true
			}
			if over() {
				differs = fmt.Sprintf("\n   model: %s\n   broker: %s", lines[at].state, state)
				return false
			}
		}
	}
	expire := func() { // what can expire has expired before the next command
		if sc.timed {
			time.Sleep((ttl + 20) * time.Millisecond)
		}
	}
	for at, step := range sc.steps {
		answer := step.run(s)
		expire()
		if !strings.HasPrefix(answer, lines[at].answer) {
			return story(sc, lines, at) + fmt.Sprintf("\n   model: %s\n   broker: %s", lines[at].answer, answer)
		}
		if !reached(at) {
			return story(sc, lines, at) + differs
		}
	}
	return ""
}

// story returns the commands until one of them.
func story(sc script, lines []line, until int) string {
	var text strings.Builder
	for at, step := range sc.steps[:until+1] {
		fmt.Fprintf(&text, "\n%3d %s -> %s", at, step.text, lines[at].answer)
		if until-at < 4 && at != until {
			fmt.Fprintf(&text, "\n      %s", lines[at].state)
		}
	}
	return text.String()
}

func (h *host) policy(prefix, pattern string, definition map[string]any) string {
	var err error
	if len(definition) == 0 {
		_, err = h.client.DeletePolicy(h.name, prefix+"policy")
	} else {
		_, err = h.client.PutPolicy(h.name, prefix+"policy",
			rabbithole.Policy{Pattern: pattern, ApplyTo: "queues", Definition: definition})
	}
	if err != nil && !strings.Contains(err.Error(), "404") {
		return err.Error()
	}
	return "ok"
}

// clean removes what a script has left on the real broker.
func (s *side) clean(queues []string) {
	s.end()
	for _, queue := range queues {
		_, _ = s.client(clients).channel.QueueDelete(s.name(queue), false, false, false)
	}
	s.cut(clients)
}

// generation returns the number of a version such as 4.3.6, without its last part.
func generation(version string) (number int, err error) {
	var major, minor int
	_, err = fmt.Sscanf(version, "%d.%d", &major, &minor)
	return 1000*major + minor, err
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}
