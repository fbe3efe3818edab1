package model

import (
	"maps"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// forward dead-letters messages that must reach a queue. Those that do not are tried again later. The queue awaits only
// so many at the same time: one that is taken makes room for the next one at once.
func (q *queue) forward() {
	now := time.Now()
	var next time.Time
	for i := 0; i < min(len(q.leaving), forwardedAtOnce); {
		m := q.leaving[i]
		if now.Before(m.again) || !q.forwarded(m) {
			if !now.Before(m.again) {
				m.again = now.Add(forwardAgain)
			}
			if next.IsZero() || m.again.Before(next) {
				next = m.again
			}
			i++
			continue
		}
		q.leaving = slices.Delete(q.leaving, i, i+1)
	}
	q.wake(&q.forwards, next)
}

// forwarded reports whether all queues have taken a message that is dead-lettered, and whether there was one.
func (q *queue) forwarded(m *message) bool {
	copied, has := q.letter(m, m.died)
	if !has {
		return true
	}
	to := q.targets(copied)
	if took, refused := copied.give(to, q); took == 0 && len(q.broker.route(copied)) == len(to) || refused {
		q.broker.note("%s keeps %s: no queue takes it", q.name, m.Body)
		return false
	}
	return true
}

// deadLetter dead-letters a message. At-least-once, it is forwarded when the queue moves on.
func (q *queue) deadLetter(m *message, reason string) {
	if q.atLeastOnce() {
		m.died = reason
		q.leaving = append(q.leaving, m)
		return
	}
	copied, has := q.letter(m, reason)
	if !has {
		q.broker.note("%s drops %s: %s", q.name, m.Body, reason)
		return
	}
	took, _ := copied.give(q.targets(copied), nil)
	q.broker.note("%s dead-letters %s: %s, to %d queues", q.name, m.Body, reason, took)
}

// letter returns the copy of a message that is dead-lettered, and reports whether the queue has an exchange for it.
func (q *queue) letter(m *message, reason string) (*message, bool) {
	exchange, has := q.text("dead-letter-exchange")
	if !has {
		return nil, false
	}
	copied := *m
	copied.exchange, copied.redelivered, copied.returned, copied.acquired, copied.front = exchange, false, 0, 0, false
	headers := amqp091.Table{}
	maps.Copy(headers, m.Headers)
	delete(headers, "x-delivery-count")
	delete(headers, "x-acquired-count")
	if key, fixed := q.text("dead-letter-routing-key"); fixed {
		copied.key, copied.copies = key, nil
		if !q.broker.does(keepsCC) {
			delete(headers, "CC")
		}
	}
	q.recordDeath(headers, m, reason)
	copied.Headers, copied.Expiration = headers, ""
	return &copied, true
}

// recordDeath writes the headers of a dead letter.
func (q *queue) recordDeath(headers amqp091.Table, m *message, reason string) {
	entry := amqp091.Table{"count": int64(0), "exchange": m.exchange, "queue": q.name, "reason": reason,
		"routing-keys": append([]any{m.key}, m.copies...), "time": time.Now().Truncate(time.Second)}
	if m.Expiration != "" {
		entry["original-expiration"] = m.Expiration
	}
	rest := []any{}
	deaths, _ := headers["x-death"].([]any)
	for _, each := range deaths {
		if old, is := each.(amqp091.Table); is && old["queue"] == q.name && old["reason"] == reason {
			entry = maps.Clone(old)
		} else {
			rest = append(rest, each)
		}
	}
	count, _ := integer(entry["count"])
	entry["count"] = count + 1
	headers["x-death"] = append([]any{entry}, rest...)
	_, died := headers["x-first-death-queue"]
	for key, value := range map[string]string{"exchange": m.exchange, "queue": q.name, "reason": reason} {
		if !died {
			headers["x-first-death-"+key] = value
		}
		if q.broker.does(lastDeath) {
			headers["x-last-death-"+key] = value
		}
	}
}

// targets are the queues that a dead letter goes to: not those in which it has died before, if no client has rejected
// it since.
func (q *queue) targets(copied *message) []*queue {
	deaths, _ := copied.Headers["x-death"].([]any)
	return slices.DeleteFunc(q.broker.route(copied), func(to *queue) bool {
		for _, each := range deaths {
			death, _ := each.(amqp091.Table)
			if death["reason"] == "rejected" {
				return false
			}
			if death["queue"] == to.name {
				return true
			}
		}
		return false
	})
}
