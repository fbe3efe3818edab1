// Command bench measures the claims about other Pub/Subs than RabbitMQ, of tools/claims: the library, and code by
// hand with Watermill's own Pub/Sub, on the same server in the same run. It starts the servers.
//
//	bench [-only regexp] [-short] [-rounds n] [-profile folder]
//
// The app runs in processes of its own, one or two, and this process counts the messages by their identity. A lost,
// early or foreign message is an error. A missed claim is not. With -profile, the first process of each side has a CPU
// profile of its last run in the folder, as backend-redis-rate-library.pprof, for go tool pprof. With -short all
// backends are measured at the same time.
package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// heading is that of the claims on the page.
const heading = "Other Pub/Subs"

// A bench is a run.
type bench struct{ claims.Program }

// A question is measured on one backend. It adds its claims to the report.
type question struct {
	name    string
	measure func(*run) error
	on      string // the only backend of the question; empty: all
}

var questions = []question{
	{name: "rate", measure: measureRate}, {name: "late", measure: measureLate},
	{name: "death", measure: measureDeath},
	{name: "inbox", measure: measureInbox, on: postgresBackend.name},
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
	server   string // its address
	sessions int    // how many were measured
}

// claim adds a figure of this backend to the claim of a name. The report has what is beside it, too.
func (r *run) claim(name string, value float64, beside ...string) {
	r.Claim(name, r.name, value, beside...)
}

// ratio claims the ratio of two sides.
func (r *run) ratio(name string, ours, theirs []float64) { r.Ratio(name, r.name, ours, theirs) }

// note prints what was measured besides the claims.
func (r *run) note(format string, arguments ...any) {
	fmt.Println(r.question + ": " + fmt.Sprintf(format, arguments...))
}

func main() {
	child.Main(roles)
	var b bench
	b.Main(heading, names(), b.measureAll)
}

func (b *bench) measureAll(chosen []string) error {
	if b.Short {
		return claims.Together(len(backends), func(i int) error { return b.measure(backends[i], chosen) })
	}
	for _, backend := range backends {
		if err := b.measure(backend, chosen); err != nil {
			return err
		}
	}
	return nil
}

// measure measures the chosen questions on a backend, which has one server for them.
func (b *bench) measure(backend backend, chosen []string) error {
	mine := slices.DeleteFunc(slices.Clone(questions), func(q question) bool {
		return !slices.Contains(chosen, q.nameOf(backend))
	})
	if len(mine) == 0 {
		return nil
	}
	entry, err := registry.Find(backend.name)
	if err != nil {
		return err
	}
	server, err := entry.Start(context.Background())
	if err != nil {
		return fmt.Errorf("%s: %w", backend.name, err)
	}
	defer server.Stop()
	r := &run{bench: b, backend: backend, server: server.URL}
	for _, q := range mine {
		r.question = q.nameOf(backend)
		if err := claims.Ask(r.question, func() error { return q.measure(r) }); err != nil {
			return err
		}
	}
	return nil
}
