package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// An app with a breaker by key has an outage of some of its tenants, whose calls fail or hang for a while. The key of a
// message is its tenant. docs/tenants.md has what follows: each of these keys pauses alone, and the messages of others
// go on.

const (
	leastOfTenant = 2
	// tenantHangs is how long a call takes of a tenant that hangs. Then it succeeds.
	tenantHangs = 3 * time.Second
	// tenantAsks is the delay that a tenant requests.
	tenantAsks = 2 * time.Second
	// tenantStands is the longest time without a call for a key while a message of it is due: a pause, which a requested
	// delay can make as long as that, the same once more for what asks late, and the longest first tier.
	tenantStands = 30 * time.Second
)

// What is wrong with a tenant during the outage.
const (
	healthy        = "healthy"
	tenantFails    = "fails"
	tenantRequests = "fails and requests a delay"
	tenantSlow     = "hangs"
)

var errAsks = backoff.RetryAfter(errDown, tenantAsks)

func isDownErr(err error) bool { return err == errDown || err == errAsks }

// drawTenants draws what is wrong with the tenants.
func (p *plan) drawTenants() {
	p.share = draw(*p, "share", 0, 0.1, 0.25)
	p.tenants = map[string]string{}
	for n := range p.keys {
		key := fmt.Sprint("k", n)
		p.tenants[key] = drawWeighted(*p, "tenant "+key,
			map[string]int{healthy: 4, tenantFails: 2, tenantRequests: 1, tenantSlow: 1})
	}
	p.tenants["k0"] = drawWeighted(*p, "tenant", map[string]int{tenantFails: 2, tenantRequests: 1, tenantSlow: 1})
}

// keyOf is the key of a message.
func (p plan) keyOf(id string) string { return fmt.Sprint("k", p.number("key", id)%uint64(p.keys)) }

// breakerOf is the breaker of the app.
func (p plan) breakerOf() *retry.Breaker {
	switch {
	case p.tenants != nil:
		key := func(m *message.Message) string { return m.Metadata.Get("key") }
		return &retry.Breaker{Key: key, Share: p.share, Least: leastOfTenant, MaxPause: longestPause}
	case p.breaker:
		return &retry.Breaker{Least: leastFailures, MaxPause: longestPause}
	}
	return nil
}

// tenant is the key of a message for the breaker; empty: it is not by key. A letter that some queue has not got has
// none.
func (p plan) tenant(id string) string {
	if p.tenants == nil {
		return ""
	}
	return p.keyOf(id)
}

// fails is the error of a call in the outage; nil: it has another outcome.
func (p plan) fails(id string) error {
	switch how := p.fate(id).how; p.tenants[p.keyOf(id)] {
	case healthy, tenantSlow:
		return nil
	case tenantRequests:
		if how != panics && how != goexits { // its error is another one
			return errAsks
		}
	}
	return errDown
}

// asks is the delay that a failure requests for its key; 0: none.
func (p plan) asks(m *letter, err error) time.Duration {
	switch {
	case p.tenants == nil:
	case err == errAsks:
		return tenantAsks
	case !isDownErr(err) && err != errBusy && err != errNotHere && p.fate(m.id).how == requests:
		return p.requested(m.id)
	}
	return 0
}

// forgetOutages forgets what is known of the keys of a handler.
func (l *ledger) forgetOutages(p *process, queue string) {
	for key := range l.plan.tenants {
		o := l.outageOf(p, queue, key)
		*o = outage{streak: o.streak, asked: o.asked, until: o.until}
	}
}

// limitedKeys are the keys that are limited in any of the processes.
func (w *world) limitedKeys(queue string) map[string]bool {
	all := map[string]bool{}
	if w.plan.tenants == nil {
		return all
	}
	for number := range w.processes {
		p, slow := w.running(number), map[string]bool{}
		for _, s := range p.connection.Health().Subscriptions {
			for key, k := range s.Keys {
				if s.Queue == queue && k.Paused != "" {
					all[key] = true
				}
				slow[s.Queue+key] = k.Paused == "slow"
			}
		}
		p.mu.Lock()
		p.slowKeys = slow
		p.mu.Unlock()
	}
	return all
}

// keepsShare checks at the begin of a call that a slow key has not more places than it may have. A call that had a
// place when the key was found slow begins at the same moment.
func (p *process) keepsShare(queue, id string, is limits) {
	key := queue + p.world.plan.keyOf(id)
	p.mu.Lock()
	p.callsOf[key]++
	calls, slow := p.callsOf[key], p.slowKeys[key]
	p.mu.Unlock()
	if slow && is.share > 0 && calls > is.share && p.world.ledger.undisturbed() {
		p.world.ledger.violated(id, "process %d has %d calls of the slow key of %s, and may have %d", p.number, calls, id,
			is.share)
	}
}

// limitsHandler reports whether a handler is limited in any of the processes, because most of its keys fail.
func (w *world) limitsHandler(queue string) bool {
	for number := range w.processes {
		of := func(s retry.SubscriptionHealth) bool { return s.Queue == queue && len(s.Paused) > 0 }
		if slices.ContainsFunc(w.running(number).connection.Health().Subscriptions, of) {
			return true
		}
	}
	return false
}

// tenantsGoOn checks that neither a handler nor one of its keys stands while messages are due. They may wait on a tier,
// or in place. While a handler is limited, any of its messages can be the next.
func (w *world) tenantsGoOn(queue string, limited map[string]bool) {
	// The other faults can leave orphans, and so can a work queue that is replaced.
	if w.plan.tenants == nil || !w.plan.only(deploy, rolling, readd, looks) || w.ledger.isReplaced() {
		return
	}
	calm, limits := w.ledger.excused(), w.limitsHandler(queue)
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	var waits *letter
	for key := range w.plan.tenants {
		of := queue + key
		due := l.isDue(of)
		if due != nil {
			waits = due
		}
		if due == nil || limits {
			l.stood[of] = time.Now()
		}
		if since := time.Since(latest(calm, l.began, l.stood[of], l.lastOf[of])); since > tenantStands {
			l.stood[of] = time.Now()
			l.violate(due.id, "no message of %s has a call for %v while %s is due, limited %v", key, since, due.id, limited)
		}
	}
	if waits == nil {
		l.stood[queue] = time.Now()
	}
	if since := time.Since(latest(calm, l.began, l.stood[queue], l.lastCall[queue])); since > tenantStands {
		l.stood[queue] = time.Now()
		l.violate(waits.id, "%s has no call for %v while %s is due, though it may wait, limited %v", queue, since, waits.id,
			limited)
	}
}

// isDue returns a message of a key whose call is due, or nil.
func (l *ledger) isDue(of string) *letter {
	for _, m := range l.byKey[of] {
		switch {
		case m.inCall > 0:
			return nil
		case m.finished:
		case time.Since(m.due) > 0:
			return m
		case l.plan.shape == keepsOrder: // the others wait for it
			return nil
		}
	}
	return nil
}
