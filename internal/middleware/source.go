package middleware

import (
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

// comesFrom reports whether a message comes from a source.
func comesFrom(s *backend.Source, in *delivery) bool {
	if s.Token != "" {
		return in.metadata[msgctx.BuilderKey] == s.Token
	}
	return in.bound != nil && in.bound.Owner == s.Owner
}

// takeToken removes the token of the builder from the metadata: the handler, what it produces and copies do not have
// it. An inbox finds the work queue in the context.
func (t *TieredRetry) takeToken(in *delivery) {
	own := t.traits.Source
	if own == nil || own.Token == "" {
		return
	}
	delete(in.metadata, msgctx.BuilderKey)
	in.token = own.Token
	if own.QueueName != nil && !settled(in.msg) {
		in.ctx = msgctx.WithQueue(in.ctx, own.QueueName)
		in.msg.SetContext(in.ctx)
	}
}

// putTokenBack makes a message of the builder of one that a middleware outside may hand in again.
func (in *delivery) putTokenBack() {
	if in.token == "" || settled(in.msg) {
		return
	}
	// The handler may have left a goroutine that reads the old one.
	marked := make(message.Metadata, len(in.msg.Metadata)+1)
	maps.Copy(marked, in.msg.Metadata)
	marked[msgctx.BuilderKey] = in.token
	in.msg.Metadata = marked
}

// refusalInterval is how often the reason is logged while a message of a wrong source is held.
const refusalInterval = 30 * time.Second

// refuse holds a message whose copies would go astray, because a nack would bring it back at once, and a queue with a
// delivery limit would drop it in the end. It returns the error with which the router nacks the message.
func (t *TieredRetry) refuse(in *delivery) error {
	o, own := originOf(in.ctx), t.traits.Source
	why := fmt.Errorf("handler %q on topic %q: its subscriber is not one of %s, so a copy of its messages would not "+
		"come back: %s",
		o.handler, o.topic, own.Name, own.Subscribe)
	until := time.Now().Add(t.config.MaxHold)
	for {
		t.logger.Error("The retry middleware does not fit the handler's subscriber, holding the message", why,
			t.fields(in))
		if !in.sleep(min(refusalInterval, time.Until(until))) {
			return t.giveBack(in, &situation{unpublished: true}, why)
		}
		if time.Until(until) <= 0 {
			return why
		}
	}
}
