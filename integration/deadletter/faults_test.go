package deadletter_test

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestRedriveGoesOnAfterALostConnection while the letters die again: no letter is lost, and not more are sent twice than
// the summary says.
func TestRedriveGoesOnAfterALostConnection(t *testing.T) {
	t.Parallel()
	const count, cuts = 1500, 3
	p := ill(t, count)
	letterQueue := deadletter.QueueOf(p.queue)
	proxy, uri := broker.Proxy(t)
	store := open(t, uri, p.Name)
	var cutting sync.WaitGroup
	var mu sync.Mutex
	var phases []letters.Phase
	cut, lost := 0, error(nil)
	summary, err := store.Redrive(t.Context(), letterQueue,
		letters.Redrive{Rate: 1000, MaxRedead: 1, Progress: func(progress letters.Progress) {
			mu.Lock()
			defer mu.Unlock()
			phases = append(phases, progress.Phase)
			if progress.Phase == letters.Waiting {
				lost = progress.Err
			}
			if cut < cuts && progress.Done >= (cut+1)*count/(cuts+1) {
				cut++
				cutting.Go(func() {
					proxy.Stop()
					assert.NoError(t, proxy.Start())
				})
			}
		}})
	cutting.Wait()
	require.NoError(t, err)
	adds(t, summary)
	assert.Equal(t, count, summary.Total)
	assert.Equal(t, cuts, cut)
	assert.Contains(t, phases, letters.Waiting)
	require.Error(t, lost)
	assert.NotContains(t, lost.Error(), "guest:guest")
	assert.Equal(t, summary.Total, summary.Done)

	p.failed.Wait(t, count, soon)
	broker.Eventually(t, soon,
		func() bool { return testapp.Depth(t, p.queue) == 0 && testapp.Depth(t, letterQueue) >= count }, "all are dead again")
	sent := 0
	for _, times := range p.failed.Counts() {
		sent += times
	}
	assert.LessOrEqual(t, sent-count, summary.Doubtful, "twice")
	seen := map[string]bool{}
	for _, l := range list(t, p.store, letterQueue) {
		assert.Positive(t, l.Redriven.Times, "each was sent")
		seen[l.ID] = true
	}
	assert.Len(t, seen, count, "lost")
}

// TestErrorsNameThePermission: a user that may do less gets an error with what is missing, and every letter stays.
func TestErrorsNameThePermission(t *testing.T) {
	t.Parallel()
	const count = 5
	a := testapp.New(t)
	queue := a.Queue("orders")
	bury(t, a, queue, count)
	letterQueue := deadletter.QueueOf(queue)
	stated(t, letterQueue)
	for name, c := range map[string]struct {
		configure, write, read string
		want                   []string
		lists                  bool
	}{
		"no read":      {".*", ".*", "^$", []string{"permission to read", letterQueue}, false},
		"no write":     {".*", "^$", ".*", []string{"write", "amq.default"}, true},
		"no configure": {"^$", ".*", ".*", []string{"configure", letterQueue + ".lock"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			user := broker.User(t, c.configure, c.write, c.read)
			config := deadletter.Config{
				URI: broker.WithUser(t, user, user), Prefix: a.Name, Management: broker.ManagementURL(t), // the limit is known
			}
			listed, failed := look(t, config, letterQueue)
			store, err := deadletter.Open(config, nil)
			require.NoError(t, err)
			defer store.Close()
			if c.lists {
				require.NoError(t, failed)
				assert.Equal(t, count, listed)
			} else {
				for _, want := range c.want {
					require.ErrorContains(t, failed, want)
				}
			}
			summary, err := store.Redrive(t.Context(), letterQueue, letters.Redrive{})
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), user+":"+user)
			adds(t, summary)
			assert.Zero(t, summary.Done)
			assert.Equal(t, upTo(count), sorted(ids(list(t, open(t, broker.URL(t), a.Name), letterQueue))))
			assert.Zero(t, testapp.Depth(t, queue))
		})
	}
}

func sorted(ids []string) []string {
	slices.Sort(ids)
	return ids
}

// TestHostileImports: a file cannot close the connection for ever, and the letters of the lines before are imported.
func TestHostileImports(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	bury(t, a, queue, 1)
	letterQueue, store := deadletter.QueueOf(queue), open(t, broker.URL(t), a.Name)
	var file bytes.Buffer
	_, err := store.Discard(t.Context(), letterQueue, letters.Discard{Export: &file})
	require.NoError(t, err)
	good := file.String()
	with := func(from, to string) string {
		t.Helper()
		require.Contains(t, good, from)
		return strings.Replace(good, from, to, 1)
	}
	for name, line := range map[string]string{
		"large":        with(`"headers":{`, `"headers":{"large":{"S":"`+strings.Repeat("x", 200_000)+`"},`),
		"no queue":     strings.ReplaceAll(good, queue, a.Queue("missing")),
		"no exchange":  strings.ReplaceAll(with(`"exchange":"`+a.Name+`"`, `"exchange":"missing"`), `"queue":"`, `"queue":"missing_`),
		"not a letter": "{}\n",
	} {
		summary, err := store.Import(t.Context(), strings.NewReader(good+line), letters.Redrive{})
		require.ErrorContains(t, err, "line 2", name)
		assert.Equal(t, 1, summary.Done, name)
		assert.Equal(t, 1, testapp.Depth(t, letterQueue), name)
		_, err = store.Discard(t.Context(), letterQueue, letters.Discard{})
		require.NoError(t, err, name)
	}
	for name, line := range map[string]string{
		"a user of another": with(`"properties":{`, `"properties":{"user_id":"another",`),
		"copies":            with(`"headers":{`, `"headers":{"CC":{"A":[{"S":"`+queue+`"}]},"BCC":{"S":"x"},`),
		"a count":           with(`"headers":{`, `"headers":{"x-delivery-count":{"l":"2000000"},`),
	} {
		_, err := store.Import(t.Context(), strings.NewReader(line), letters.Redrive{})
		require.NoError(t, err, name)
		l := list(t, store, letterQueue)
		require.Len(t, l, 1, name)
		assert.Equal(t, testapp.ID(0), l[0].ID, name)
		assert.Zero(t, testapp.Depth(t, queue), "%s: nothing goes to the work queue", name)
		_, err = store.Discard(t.Context(), letterQueue, letters.Discard{})
		require.NoError(t, err, name)
	}
}
