package retry_test

import (
	"context"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// The page in the app's own admin server, behind its login.
func Example_page() {
	logger := watermill.NopLogger{}
	login := func(h http.Handler) http.Handler { return h }
	uri, management := "amqp://guest:guest@localhost:5672/", "http://guest:guest@localhost:15672"
	_, err := config.Connect(config.Config{AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: backoff.Constant(time.Minute, 3)}}, logger)
	check(err)

	store, err := deadletter.Open(deadletter.Config{URI: uri, Management: management}, logger)
	check(err)
	defer store.Close()
	board, err := page.New(page.Config{
		Store:      store,
		Status:     func(ctx context.Context) (letters.Status, error) { return store.Status(ctx, "orders", "mails") },
		AllowWrite: true,
		By:         func(r *http.Request) string { user, _, _ := r.BasicAuth(); return user },
	})
	check(err)
	defer board.Close() // ends its redrives, before the store closes
	http.Handle("/dead-letters/", login(board))
	check(http.ListenAndServe("127.0.0.1:8080", nil))
}
