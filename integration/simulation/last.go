package simulation

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/users"
)

// end ends a process whose context is done. Close of Watermill's router waits for calls, with a mutex that each handler
// needs when it ends. A bubble cannot wait for a mutex, so the handlers end before.
func (p *process) end() {
	defer close(p.done)
	<-p.ctx.Done()
	p.mu.Lock()
	handlers := slices.Collect(maps.Values(p.handlers))
	p.mu.Unlock()
	for _, handler := range handlers {
		<-handler.Stopped()
	}
	time.Sleep(time.Millisecond) // a call that was handed out has begun
	close(p.closing)
	_ = p.router.Close()
	close(p.closed)
	_ = p.close()
}

// addLast adds a handler without messages. The router closes itself with its last handler, so this one ends when no
// call runs, or after Close has waited as long as it waits.
func (p *process) addLast() {
	var calls users.Count
	p.router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if calls.Enter() {
				go func() {
					select {
					case <-msg.Acked():
					case <-msg.Nacked():
					}
					calls.Leave()
				}()
			}
			return next(msg)
		}
	})
	p.router.AddConsumerHandler("last", "last", last{func() {
		<-p.closing
		select {
		case <-calls.Close():
		case <-p.closed:
		}
	}}, func(*message.Message) error { return nil })
}

// last is the subscriber of a handler without messages.
type last struct{ wait func() }

func (l last) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	messages := make(chan *message.Message)
	go func() {
		defer close(messages)
		l.wait()
	}()
	return messages, nil
}

func (last) Close() error { return nil }
