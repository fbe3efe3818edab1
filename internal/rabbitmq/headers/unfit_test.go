package headers_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// TestWhatACopyCannotHaveComesBack: no copy has a part of the list, and the next delivery has each one that is kept.
func TestWhatACopyCannotHaveComesBack(t *testing.T) {
	first := amqp091.Delivery{
		Acknowledger: configtest.Settled{}, Exchange: "shop", UserId: "web", ReplyTo: unfit.DirectReplyTo, Expiration: "1", Priority: 3,
		Headers: amqp091.Table{},
	}
	for i, h := range unfit.Headers {
		first.Headers[h.Name] = int64(i)
	}
	for name, dead := range map[string]string{"waiting": "", "dead": "exhausted"} {
		t.Run(name, func(t *testing.T) {
			m := headers.New(textual{}, naming.Default)
			next := first
			for range 3 {
				msg, err := m.Unmarshal(next)
				require.NoError(t, err)
				msg.Metadata[recordkey.Failures] = "1"
				if dead != "" {
					msg.Metadata[recordkey.DeadReason] = dead
				}
				p, err := m.Marshal(msg)
				require.NoError(t, err)
				assert.Empty(t, p.UserId+p.ReplyTo+p.Expiration)
				for _, h := range unfit.Headers {
					assert.NotContains(t, p.Headers, h.Name)
					if h.Kept != "" && h.Of&unfit.Waiting != 0 {
						assert.Equal(t, first.Headers[h.Name], p.Headers[h.Kept])
					}
				}
				next = amqp091.Delivery{
					Acknowledger: configtest.Settled{}, Exchange: naming.Default.ReturnExchange(), RoutingKey: "1s.orders", UserId: p.UserId, ReplyTo: p.ReplyTo,
					Priority: p.Priority, Headers: p.Headers,
				}
				was := headers.Original(&next, true)
				assert.Equal(t, []any{first.UserId, first.ReplyTo, first.Priority}, []any{was.UserId, was.ReplyTo, was.Priority})
			}
		})
	}
}

// TestWhatTheBrokerVouchedForIsNotBelievedAfterARedrive: any publisher can write the headers of a message on the
// default exchange.
func TestWhatTheBrokerVouchedForIsNotBelievedAfterARedrive(t *testing.T) {
	d := amqp091.Delivery{Headers: amqp091.Table{
		"retry_user_id": "root", "retry_priority": byte(9), "retry_reply_to": unfit.DirectReplyTo, "retry_opt_delivery_time": int64(1),
	}}
	to := amqp091.Table{}
	unfit.Restore(&d, to, d.Headers, false)
	assert.Equal(t, []any{"", byte(0), unfit.DirectReplyTo}, []any{d.UserId, d.Priority, d.ReplyTo})
	assert.Equal(t, amqp091.Table{"x-opt-delivery-time": int64(1)}, to)
}

// TestOutcomesListsWhatACopyCannotHave, with the header that has the value instead.
func TestOutcomesListsWhatACopyCannotHave(t *testing.T) {
	page, err := os.ReadFile("../../../docs/outcomes.md")
	require.NoError(t, err)
	for _, part := range append(append([]unfit.Part{}, unfit.Properties...), unfit.Headers...) {
		name := part.Name
		if part.Begins {
			name += "*"
		}
		to := "left out"
		if part.Kept != "" {
			to = fmt.Sprintf("`%s`", part.Kept)
		}
		assert.Regexp(t, fmt.Sprintf(`(?m)^\| [^|\n]*%s[^|\n]* \| %s \| `, regexp.QuoteMeta("`"+name+"`"), to), string(page), name)
	}
}
