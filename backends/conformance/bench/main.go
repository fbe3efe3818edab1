// Command bench measures the claims about other Pub/Subs than RabbitMQ, of tools/claims: the library, and code by
// hand with Watermill's own Pub/Sub, on the same server in the same run. It starts the servers.
//
//	bench [-only regexp] [-short] [-rounds n] [-profile folder]
//
// The messages are counted by their identity. A lost, early or foreign message is an error. A missed claim is not. With
// -profile, each side has a CPU profile of its last run in the folder, as backend-redis-rate-library.pprof, for go tool
// pprof. With -short all backends are measured at the same time, without profiles.
package main

import (
	"context"
	"slices"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

// heading is that of the claims on the page.
const heading = "Other Pub/Subs"

// A bench is a run.
type bench struct{ claims.Program }

// A question is measured on one backend. It adds its claims to the report.
type question struct {
	name    string
	measure func(context.Context, *run) error
	on      string // the only backend of the question; empty: all
}

var questions = []question{
	{name: "rate", measure: measureRate}, {name: "inbox", measure: measureInbox, on: postgresBackend.name},
}

// asks reports whether the question is one about a backend.
func (q question) asks(b backend) bool { return q.on == "" || q.on == b.name }

// nameOf returns the name of a question on a backend, as -only matches it.
func (q question) nameOf(b backend) string { return claims.Backend + b.name + "-" + q.name }

func names() (all []string) {
	for _, backend := range backends {
		for _, q := range questions {
			if q.asks(backend) {
				all = append(all, q.nameOf(backend))
			}
		}
	}
	return all
}

// A run is a question on a backend.
type run struct {
	*bench
	backend
	question string
}

func main() {
	var b bench
	b.Main(heading, names(), b.measureAll)
}

func (b *bench) measureAll(chosen []string) error {
	if b.Short {
		b.Profiles = "" // of one side at a time only
		return claims.Together(len(backends), func(i int) error { return b.measure(backends[i], chosen) })
	}
	for _, backend := range backends {
		if err := b.measure(backend, chosen); err != nil {
			return err
		}
	}
	return nil
}

// measure measures the chosen questions on a backend.
func (b *bench) measure(backend backend, chosen []string) error {
	for _, q := range questions {
		r := &run{bench: b, backend: backend, question: q.nameOf(backend)}
		if !q.asks(backend) || !slices.Contains(chosen, r.question) {
			continue
		}
		if err := claims.Ask(r.question, func() error { return q.measure(context.Background(), r) }); err != nil {
			return err
		}
	}
	return nil
}
