package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/Azure/go-amqp"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/amqp10"
)

// SendRequests sends messages as an AMQP 1.0 publisher that sets reply-to to the address of direct reply-to, and a
// delivery time: each of these bodies is one. Below 4.0 no client can send such a message, so the broker's own code
// puts it into the queue.
func SendRequests(t testing.TB, queue string, deliveryTime int64, bodies ...string) {
	t.Helper()
	if amqp10.Spoken(Connect(t)) {
		messages := make([]*amqp.Message, len(bodies))
		for i, body := range bodies {
			messages[i] = amqp10.Message(body, amqp10.ReplyTo)
			messages[i].Annotations = amqp.Annotations{"x-opt-delivery-time": deliveryTime}
		}
		SendAMQP10(t, queue, messages...)
		return
	}
	Ctl(t, "eval", fmt.Sprintf(`[rabbit_basic:publish(rabbit_misc:r(<<"/">>, exchange, <<"">>), <<"%s">>, `+
		`[{delivery_mode, 2}, {reply_to, <<"%s">>}, {headers, [{<<"x-opt-delivery-time">>, long, %d}]}], Body) `+
		`|| Body <- [<<"%s">>]].`,
		queue, amqp10.ReplyTo, deliveryTime, strings.Join(bodies, `">>, <<"`)))
}

// SendAMQP10 sends messages to a queue over AMQP 1.0.
func SendAMQP10(t testing.TB, queue string, messages ...*amqp.Message) {
	t.Helper()
	sender, end, err := amqp10.Dial(t.Context(), URL(t), queue)
	require.NoError(t, err)
	defer end()
	for _, m := range messages {
		require.NoError(t, sender.Send(t.Context(), m, nil))
	}
}
