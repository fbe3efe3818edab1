package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
)

func TestRedrive(t *testing.T) {
	t.Parallel()
	q := declare(t)
	ids := q.fill(4, func(i int, id string) amqp091.Publishing {
		p := letter(id, timeout(i), []byte{byte(i), 0, 255})
		p.Headers["typed"], p.Priority = int64(i), 5
		return p
	})
	assert.Equal(t, 1, redriven(t, 0, "dead", "redrive", q.work, "--id", ids[3], "--again").Done)
	r := run(t, 0, "dead", "redrive", q.work)
	assert.Regexp(t, `Redrive of `+q.dead+` at amqp://[^@ ]+ \(.+\)\n +3  sent back, confirmed and removed\n +3  letters were in the queue at the start\n$`, r.stdout)

	back, deliveries := q.take(q.work)
	assert.Equal(t, map[string]int{ids[0]: 1, ids[1]: 1, ids[2]: 1, ids[3]: 1}, back)
	for _, d := range deliveries {
		assert.Equal(t, uint8(5), d.Priority)
		assert.IsType(t, int64(0), d.Headers["typed"])
		assert.NotContains(t, d.Headers, recordkey.Failures, "its count begins anew")
		var history letters.Redriven
		require.NoError(t, json.Unmarshal([]byte(d.Headers[letters.RedrivenKey].(string)), &history))
		require.Len(t, history.Redrives, 1)
		assert.Contains(t, history.Redrives[0].By, "@")
		assert.Equal(t, d.Headers[uuidHeader] == ids[3], history.Redrives[0].Again)
	}
	run(t, 0, "dead", "redrive", q.work) // nothing is dead, and nothing was asked for
}

// TestTheCanaryDiesAgain: the app of this queue fails each message, so the canary dies, and the command shows why.
func TestTheCanaryDiesAgain(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(40)
	channel := channelOf(t)
	deliveries, err := channel.Consume(q.work, "", true, false, false, false, nil)
	require.NoError(t, err)
	go func() {
		for d := range deliveries {
			id, _ := d.Headers[uuidHeader].(string)
			p := letter(id, timeout(1), d.Body)
			p.Headers[letters.RedrivenKey] = d.Headers[letters.RedrivenKey]
			_ = channel.PublishWithContext(context.Background(), "", q.dead, false, false, p)
		}
	}()
	redrive := []string{"dead", "redrive", q.work, "--canary", "4", "--canary-wait", "30s"}
	s := redriven(t, 3, redrive...)
	assert.Equal(t, 4, s.Done)
	require.NotEmpty(t, s.Causes)
	assert.Contains(t, s.Causes[0].Reason, "connection refused")
	r := run(t, 3, redrive...)
	assert.Regexp(t, `(?m)^DIED AGAIN +CAUSE +DEAD REASON .*\n.*\n +\d  [0-9a-f]{8}  exhausted .*connection refused`, r.stdout)
	assert.Contains(t, r.stderr, "repair the cause first")
	s = redriven(t, 3, "dead", "redrive", q.work, "--max-redead", "5%", "--rate", "10/s")
	assert.GreaterOrEqual(t, s.Done, 20)
	assert.Contains(t, s.Error, "died again")
	q.await(q.dead, 40)
}

// TestProgress: a line that changes on a terminal, and elsewhere a line every few seconds.
func TestProgress(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(90)
	p := onTerminal(t, nil, "dead", "redrive", q.work, "--rate", "40/s", "--limit", "60")
	for _, want := range []string{" of at most 60 sent, ", "/s", " left", "\x1b[K"} {
		p.await(p.stdout, want)
	}
	r := p.wait()
	assert.Equal(t, 0, r.code)
	assert.Contains(t, colour.ReplaceAllString(r.stdout, ""), "60  sent back, confirmed and removed")
	piped := run(t, 0, "dead", "redrive", q.work, "--rate", "240/m") // a line every five seconds
	assert.Regexp(t, `(?m)^\d+ of 30 sent, \d+/s, \d+s left$`, piped.stderr)
	assert.NotContains(t, piped.stdout+piped.stderr, "\x1b")
	q.await(q.work, 90)
}

// TestCtrlC: the first Ctrl-C ends the command after the letters in flight, with a summary.
func TestCtrlC(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(300)
	p := start(t, nil, "dead", "redrive", q.work, "--rate", "50/s", "--json")
	require.Eventually(t, func() bool { return q.count(q.work) >= 5 }, patience, 10*time.Millisecond)
	require.NoError(t, p.command.Process.Signal(os.Interrupt))
	r := p.wait()
	assert.Equal(t, 130, r.code, r.stderr)
	s := summaryOf(t, r.stdout)
	assert.True(t, s.Interrupted)
	assert.Equal(t, "interrupted", s.Error)
	assert.Equal(t, 300, s.Total)
	assert.Less(t, s.Done, 300)
	q.await(q.work, s.Done)
	q.await(q.dead, 300-s.Done)
}

// rest redrives what is left, and takes all letters out of the work queue, until each id is among them or was there before. It counts
// the ids in have. The broker gives back the letters of a process that was killed in its own time.
func (q *queues) rest(ids []string, have map[string]int) (map[string]int, []amqp091.Delivery) {
	q.t.Helper()
	var all []amqp091.Delivery
	for deadline := time.Now().Add(patience); ; {
		r := start(q.t, nil, "dead", "redrive", q.work).wait()
		if r.code != 0 {
			require.Regexp(q.t, "another (command changes this queue|reader of .* has taken them)", r.stderr) // the process that was killed
		}
		back, deliveries := q.take(q.work)
		for id, n := range back {
			have[id] += n
		}
		all = append(all, deliveries...)
		if r.code == 0 && q.count(q.dead) == 0 && missing(ids, have) == 0 || time.Now().After(deadline) {
			return have, all
		}
	}
}

// missing counts the ids that are not there.
func missing(ids []string, have map[string]int) int {
	n := 0
	for _, id := range ids {
		if have[id] == 0 {
			n++
		}
	}
	return n
}

// TestSIGKILL kills redrives at random points until all letters are back.
func TestSIGKILL(t *testing.T) {
	t.Parallel()
	const letters, inFlight, mostKills = 2000, 256, 6
	q := declare(t)
	ids := q.timeouts(letters)
	kills := 0
	for kills < mostKills && q.count(q.work) < letters {
		p := start(t, nil, "dead", "redrive", q.work)
		killed := time.AfterFunc(time.Duration(rand.IntN(250))*time.Millisecond, func() { _ = p.command.Process.Kill() })
		if r := p.wait(); r.code == -1 {
			kills++
		}
		killed.Stop()
	}
	back, deliveries := q.rest(ids, map[string]int{})
	lost := missing(ids, back)
	doubles := len(deliveries) - letters
	t.Logf("SIGKILL: %d letters, %d kills: lost %d, doubles %d of at most %d", letters, kills, lost, doubles, kills*inFlight)
	assert.Zero(t, lost)
	assert.LessOrEqual(t, doubles, kills*inFlight)
	assert.Len(t, back, letters)
}

// TestSIGKILLOfDiscard: each letter is in the file or in the queue.
func TestSIGKILLOfDiscard(t *testing.T) {
	t.Parallel()
	const letters = 1500
	q := declare(t)
	ids := q.timeouts(letters)
	folder := t.TempDir()
	kills := 0
	for n := 0; q.count(q.dead) > 0 && n < 40; n++ {
		file := filepath.Join(folder, fmt.Sprint(n))
		p := start(t, nil, "dead", "discard", q.work, "--yes", "--export", file)
		least, ended := rand.Int64N(500_000), make(chan struct{})
		go func() { // kills it when the file has so many bytes
			for tick := time.Tick(time.Millisecond); ; {
				select {
				case <-ended:
					return
				case <-tick:
					if info, err := os.Stat(file); err == nil && info.Size() >= least {
						time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond) // a random point between two writes
						_ = p.command.Process.Kill()
						return
					}
				}
			}
		}()
		if r := p.wait(); r.code == -1 {
			kills++
		}
		close(ended)
		if kills >= 4 {
			break
		}
	}
	have := map[string]int{}
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	require.NoError(t, err)
	exported := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(content)) {
			var one listed
			if json.Unmarshal([]byte(line), &one) == nil { // the last line may be cut: its letter was not removed
				have[one.ID]++
				exported++
			}
		}
	}
	q.rest(ids, have)
	lost := missing(ids, have)
	t.Logf("SIGKILL of discard --export: %d letters, %d kills, %d lines in files: lost %d", letters, kills, exported, lost)
	assert.Zero(t, lost)
}
