package simulation

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// fate is what the handler does with a message, whatever happens to the message.
type fate struct {
	how      string
	failures int // how many failures count before it succeeds. There can be more than there are retries
}

// How a handler fails.
const (
	fails     = "fails"
	requests  = "requests a delay"
	panics    = "panics"
	goexits   = "ends its goroutine"
	snoozes   = "is snoozed first"
	returns   = "is given back first"
	permanent = "fails for good"
	invalid   = "is a dead letter by a rule"
	stale     = "is discarded"
)

var (
	errFailed  = errors.New(failsText + ": " + strings.Repeat("long ", 300))
	errOther   = errors.New("and something else")
	errBusy    = errors.New("busy")
	errNotHere = errors.New("not here")
	errInvalid = errors.New("invalid")
	errStale   = errors.New("stale")
	errDown    = errors.New(failsText + ": what it needs is down")
)

const (
	failsText  = "the handler fails"
	snooze     = 2 * time.Second
	givenBack  = time.Second // how long GiveBack waits, as documented
	deadReason = "invalid"
)

// rules are those of the policy. One that panics matches nothing, and the first one that matches decides.
var rules = []retry.Rule{
	{Name: "bug", If: bug, Then: retry.Discard()},
	{Name: "busy", If: retry.Is(errBusy), Then: retry.Snooze(snooze)},
	{Name: "not here", If: retry.Is(errNotHere), Then: retry.GiveBack()},
	{Name: "invalid", If: retry.Is(errInvalid), Then: retry.DeadLetter(deadReason)},
	{Name: "stale", If: retry.Is(errStale), Then: retry.Discard()},
	{Name: "busy again", If: retry.Is(errBusy), Then: retry.Discard()},
}

func bug(_ retry.Record, err error) bool {
	if errors.Is(err, errOther) {
		panic("a bug")
	}
	return false
}

func (p plan) fate(id string) fate { return p.fates[id] }

func (p plan) drawFate(id string) fate {
	how := drawWeighted(p, "how "+id, map[string]int{fails: 10, requests: 2, panics: 1, goexits: 1, snoozes: 1, returns: 1,
		permanent: 1, invalid: 1, stale: 1})
	if p.tenants != nil && p.number("healthy", id)%4 > 0 { // else most keys fail, and the handler pauses
		return fate{fails, 0}
	}
	return fate{how, int(p.number("failures", id) % uint64(len(p.schedule)+2))}
}

// requested is the delay that a message requests.
func (p plan) requested(id string) time.Duration {
	return p.schedule[0] + p.upTo(5*time.Second, "requested", id).Truncate(100*time.Millisecond)
}

// lasts is how long a call takes.
func (p plan) lasts(id string, record retry.Record, since time.Duration) time.Duration {
	if p.isDown(since) && p.tenants[p.keyOf(id)] == tenantSlow {
		return tenantHangs
	}
	return p.upTo(p.takes, "lasts", id, record.Failures)
}

// ignores reports whether a handler ignores the end of its context. One that keeps an order may do so.
func (p plan) ignores() bool { return p.shape != keepsOrder || p.number("ignores")%2 == 0 }

// outcome is the error of a call, nil for a success. first is the first call of the message in this queue.
func (p plan) outcome(id string, record retry.Record, first bool, since time.Duration) error {
	f := p.fate(id)
	switch {
	case p.isDown(since) && p.fails(id) != nil:
		return p.fails(id)
	case p.breaker && since > activity: // while only messages are left that fail, a breaker would stay open
		return nil
	case f.how == permanent:
		return errors.Join(errOther, backoff.Permanent(errFailed))
	case f.how == invalid:
		return errInvalid
	case f.how == stale:
		return errStale
	case f.how == snoozes && record.Snoozes == 0:
		return errBusy
	case f.how == returns && first:
		return errNotHere
	case record.Failures >= f.failures:
		return nil
	case f.how == requests:
		return backoff.RetryAfter(errFailed, p.requested(id))
	default:
		return fmt.Errorf("%w: message %s, failure %d", errFailed, id, record.Failures+1)
	}
}

// end ends a call in the way of the message.
func (f fate) end(err error) error {
	if err != nil && f.how == panics {
		panic(err)
	}
	if err != nil && f.how == goexits {
		runtime.Goexit()
	}
	return err
}

// reason is why a message becomes a dead letter, where it does.
func (p plan) reason(id string) retry.DeadReason {
	switch f := p.fate(id); {
	case f.how == permanent:
		return retry.DeadReasonPermanent
	case f.how == invalid:
		return deadReason
	case f.how != stale && f.failures > len(p.schedule):
		return retry.DeadReasonExhausted
	}
	return ""
}

// dies reports whether a message must become a dead letter.
func (p plan) dies(id string) bool {
	return !p.breaker && p.reason(id) != ""
}
