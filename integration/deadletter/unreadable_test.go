package deadletter_test

import (
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/amqp10"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// nested returns a header with lists in each other. amqp091-go writes more levels than it reads.
func nested(levels int) any {
	if levels == 0 {
		return "deep"
	}
	return []any{nested(levels - 1)}
}

// TestALetterThatCannotBeRead: each call handles the letters before it, and then names it by its place. When it is
// removed, the letters behind it are there, and nothing was sent twice but what the summary has.
func TestALetterThatCannotBeRead(t *testing.T) {
	t.Parallel()
	type row struct {
		send   func(t *testing.T, queue string)
		before int
		kind   string
	}
	deep := func(t *testing.T, queue string) {
		testapp.Send(t, "", queue, amqp091.Publishing{Headers: amqp091.Table{"h": nested(40)}})
	}
	rows := map[string]row{
		"the first": {deep, 0, "quorum"}, "the third": {deep, 2, "quorum"}, "quorum": {deep, 60, "quorum"},
		"classic": {deep, 60, "classic"},
	}
	if amqp10.Spoken(broker.Connect(t)) { // the broker ends the connection itself
		rows["UUID of AMQP 1.0"] = row{func(t *testing.T, queue string) {
			m := amqp10.Message("uuid", "")
			m.ApplicationProperties = map[string]any{"id": amqp.UUID{1}}
			broker.SendAMQP10(t, queue, m)
		}, 20, "quorum"}
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const behind = 30
			a := testapp.New(t)
			work := a.Queue("orders")
			queue, all := deadletter.QueueOf(work), dead(work, row.before+behind)
			for _, name := range []string{work, queue} {
				declare(t, name, amqp091.Table{"x-queue-type": row.kind})
			}
			testapp.Send(t, "", queue, all[:row.before]...)
			row.send(t, queue)
			testapp.Send(t, "", queue, all[row.before:]...)
			store := open(t, broker.URL(t), a.Name)
			named := func(err error, place string) {
				t.Helper()
				require.Regexp(t, "^the letter at place "+place+" of", err.Error())
				require.ErrorContains(t, err, "docs/limits.md#messages-that-go-clients-cannot-read")
			}
			browse := func() []string {
				seen, failed := []string{}, error(nil)
				for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
					if failed = err; err == nil {
						seen = append(seen, l.ID)
					}
				}
				place := "\\d+" // a quorum queue has another order then
				if row.kind == "classic" {
					place = strconv.Itoa(row.before + 1)
				}
				named(failed, place)
				return seen
			}
			back := func() {
				t.Helper()
				broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue) > row.before+behind },
					"the broker has the letters of the ended connection back")
			}
			for range 2 {
				seen := browse()
				back()
				if row.kind == "classic" {
					require.Equal(t, upTo(row.before), seen)
				}
				require.Subset(t, upTo(row.before+behind), seen)
				require.Len(t, slices.Compact(sorted(seen)), len(seen), "none is seen twice")
			}
			var file bytes.Buffer
			written, err := store.Export(t.Context(), queue, letters.Filter{}, &file)
			named(err, "\\d+")
			back()
			assert.Equal(t, written, strings.Count(file.String(), "\n"))
			waits := 0
			summary, err := store.Redrive(t.Context(), queue, letters.Redrive{Progress: func(p letters.Progress) {
				if p.Phase == letters.Waiting {
					waits++
				}
			}})
			named(err, "1")
			adds(t, summary)
			assert.Zero(t, waits, "the broker is not away")
			for err != nil { // it can be behind letters that have come back
				broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue) > 0 }, "it is back")
				if !removeFirst(t, queue) {
					return // only a client of AMQP 1.0 can
				}
				var one letters.Summary
				one, err = store.Redrive(t.Context(), queue, letters.Redrive{})
				summary.Doubtful += one.Doubtful
			}
			sent := testapp.NewLedger()
			total := testapp.Depth(t, work)
			for _, d := range testapp.Take(t, work, total) {
				sent.Add(d.Headers["_watermill_message_uuid"].(string))
			}
			assert.Equal(t, row.before+behind, sent.Len())
			assert.LessOrEqual(t, total-sent.Len(), summary.Doubtful, "twice")
		})
	}
}

// removeFirst removes the first message of a queue over the management API, where that can read it.
func removeFirst(t *testing.T, queue string) bool {
	t.Helper()
	client := broker.Management(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		client.Endpoint+"/api/queues/%2F/"+url.PathEscape(queue)+"/get",
		strings.NewReader(`{"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}`))
	require.NoError(t, err)
	request.SetBasicAuth(client.Username, client.Password)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}
