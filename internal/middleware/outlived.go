package middleware

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// maxKept limits how many failures are kept.
const maxKept = 1024

// outlived are calls that may outlive their messages: the backend ends the context of a message and delivers it again,
// to this process or to another one. A call that fails after that cannot be settled. Its failure is kept for the next
// delivery. Without it, a message whose handler always takes too long would be called again for ever.
type outlived struct {
	mu    sync.Mutex
	calls map[callKey]*outlivedCall // the calls that run, or whose failures are kept
	kept  []callKey                 // the oldest first
}

// callKey is a delivery of a message, and each of its redeliveries. A retry, a redriven message and another message
// with the same UUID are not the same.
type callKey struct {
	topic, uuid       string
	failures, snoozes int
	content           uint64
}

type outlivedCall struct {
	key   callKey
	ctx   context.Context // as the subscriber made it
	ended chan struct{}
	err   error // the failure to keep. It is read after ended is closed
}

var contentSeed = maphash.MakeSeed()

func callKeyOf(in *delivery) callKey {
	var content maphash.Hash
	content.SetSeed(contentSeed)
	_, _ = content.Write(in.payload)
	_, _ = content.WriteString(in.metadata[recordkey.Redriven])
	return callKey{
		topic: originOf(in.ctx).topic, uuid: in.uuid,
		failures: in.record.Failures, snoozes: in.record.Snoozes, content: content.Sum64(),
	}
}

// begin returns the failure of an earlier call with the same message, which it outlived, or nil. While that call runs,
// begin waits, until the message's own context ends.
func (o *outlived) begin(in *delivery) error {
	key := callKeyOf(in)
	o.mu.Lock()
	defer o.mu.Unlock()
	earlier := o.calls[key]
	if earlier != nil {
		if earlier.ctx.Err() == nil {
			return nil // two messages are the same, and only one is remembered
		}
		o.mu.Unlock()
		select {
		case <-earlier.ended:
		case <-in.own.Done():
		}
		o.mu.Lock()
		if in.own.Err() != nil || o.calls[key] != nil && o.calls[key] != earlier {
			return nil
		}
	}
	kept := o.calls[key] // earlier, or nil: it has succeeded, or is settled
	if o.calls == nil {
		o.calls = map[callKey]*outlivedCall{}
	}
	in.call = &outlivedCall{key: key, ctx: in.own, ended: make(chan struct{})}
	o.calls[key] = in.call
	if kept == nil {
		return nil
	}
	o.kept = slices.DeleteFunc(o.kept, func(k callKey) bool { return k == key })
	return kept.err
}

// keep keeps the failure of a call for the next delivery of its message. Where the subscriber ends the context of a
// call that takes too long, it keeps the failure itself.
func (o *outlived) keep(in *delivery, err error) {
	switch {
	case in.call != nil:
		in.call.err = err
	case err != nil && errors.Is(context.Cause(in.own), msgctx.ErrOutlived):
		in.own.Outlived = err
	}
}

// isKept reports whether the next delivery of a message has the failure of its call.
func (in *delivery) isKept() bool {
	return in.call != nil && in.call.err != nil || in.own.Outlived != nil
}

// end ends a call.
func (o *outlived) end(in *delivery) {
	if in.call == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if in.call.err == nil {
		delete(o.calls, in.call.key)
	} else if o.kept = append(o.kept, in.call.key); len(o.kept) > maxKept {
		delete(o.calls, o.kept[0])
		o.kept = slices.Delete(o.kept, 0, 1)
	}
	close(in.call.ended)
}
