package page_test

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// An app has the page in its admin server, behind its own login. The operator's name gets into the history of each letter.
func ExampleNew() {
	store, err := deadletter.Open(deadletter.Config{URI: os.Getenv("AMQP_URL"), Management: os.Getenv("AMQP_MANAGEMENT_URL")}, nil)
	check(err)
	defer store.Close()

	dead, err := page.New(page.Config{
		Store:      store,
		Status:     func(ctx context.Context) (letters.Status, error) { return store.Status(ctx) },
		AllowWrite: true,
		By:         func(r *http.Request) string { return operator(r) },
	})
	check(err)
	defer dead.Close() // before the store: it ends what still runs

	mux := http.NewServeMux()
	mux.Handle("/admin/dead/", login(dead))
	check(http.ListenAndServe("127.0.0.1:8081", mux))
}

func ExampleLoopbackHosts() {
	// A page without a login, for this host only: the listener is on a loopback address, and the name in a request must be one, too.
	dead, err := page.New(page.Config{Store: letterStore(), Status: depths, Hosts: page.LoopbackHosts()})
	check(err)
	defer dead.Close()
	check(http.ListenAndServe("127.0.0.1:8081", dead))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func login(next http.Handler) http.Handler { return next }

func operator(r *http.Request) string { return r.Header.Get("X-Forwarded-User") }

func letterStore() letters.Store { return &store{} }

func depths(context.Context) (letters.Status, error) { return letters.Status{}, nil }
