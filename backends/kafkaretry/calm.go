package kafkaretry

import (
	"cmp"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/relay"
)

// calmPause is how often a fault of a handler is in the log.
const calmPause = 10 * time.Second

// calm is the logger of a subscription. In an outage sarama repeats an error for each partition, several times a
// second. What is left out is at the debug level. The membership gets all errors.
type calm struct {
	watermill.LoggerAdapter
	member  *membership
	repeats *repeats
}

// repeats are the errors of all topics of a handler.
type repeats struct {
	mu     sync.Mutex
	logged time.Time // the last one
	hidden int       // after it
}

// calm returns a logger for a subscription of a handler, or of a tier.
func (c *cluster) calm(params relay.SubscriberParams, member *membership) watermill.LoggerAdapter {
	c.calming.Lock()
	defer c.calming.Unlock()
	if c.calms == nil {
		c.calms = map[string]*repeats{}
	}
	name := cmp.Or(params.Handler, "tier "+params.Tier.String())
	if c.calms[name] == nil {
		c.calms[name] = new(repeats)
	}
	return calm{c.logger, member, c.calms[name]}
}

// With implements watermill.LoggerAdapter.
func (c calm) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return calm{c.LoggerAdapter.With(fields), c.member, c.repeats}
}

// Error implements watermill.LoggerAdapter.
func (c calm) Error(msg string, err error, fields watermill.LogFields) {
	c.member.failed(err)
	if hidden, logged := c.repeats.add(); !logged {
		c.Debug(msg, fields.Add(watermill.LogFields{"err": err}))
	} else if hidden > 0 {
		c.LoggerAdapter.Error(msg, err, fields.Add(watermill.LogFields{"errors_before": hidden}))
	} else {
		c.LoggerAdapter.Error(msg, err, fields)
	}
}

// add reports whether an error is to be logged, and how many were not since the last one.
func (r *repeats) add() (hidden int, logged bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.logged.IsZero() && time.Since(r.logged) < calmPause {
		r.hidden++
		return 0, false
	}
	hidden, r.logged, r.hidden = r.hidden, time.Now(), 0
	return hidden, true
}
