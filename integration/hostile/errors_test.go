package hostile_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

type nilTyped struct{ text string }

func (e *nilTyped) Error() string { return e.text }

type panicking struct{}

func (panicking) Error() string { panic("no words") }

type panickingUnwrap struct{}

func (panickingUnwrap) Error() string { return "unwrap me" }
func (panickingUnwrap) Unwrap() error { panic("nothing inside") }

type panickingAs struct{}

func (panickingAs) Error() string { return "as what" }
func (panickingAs) As(any) bool   { panic("as nothing") }

type panickingIs struct{}

func (panickingIs) Error() string   { return "is what" }
func (panickingIs) Is(error) bool   { panic("is nothing") }
func (panickingIs) Permanent() bool { panic("in Permanent") }

type nilUnwrap struct{}

func (nilUnwrap) Error() string   { return "nils inside" }
func (nilUnwrap) Unwrap() []error { return []error{nil, nil} }

// odd contains errors that handlers should not return.
var odd = map[string]error{
	"10 MB":          errors.New(strings.Repeat("x", 10<<20)),
	"10 MB of runes": errors.New(strings.Repeat("€", 10<<20/3)),
	"invalid UTF-8":  errors.New("\xff\xfe\x80" + strings.Repeat("\xe2\x82", 2000)),
	"NUL and breaks": errors.New("a\x00b\r\nretry_failures: 0"),
	"no text":        errors.New(""),
	"nil-typed":      (*nilTyped)(nil),
	"Error panics":   panicking{},
	"Unwrap panics":  panickingUnwrap{},
	"wraps a panic":  fmt.Errorf("wrapped: %w", panickingUnwrap{}),
	"As panics":      panickingAs{},
	"Is panics":      panickingIs{},
	"joined nils":    nilUnwrap{},
	"joined oddly":   errors.Join(errDown, panickingUnwrap{}, (*nilTyped)(nil)),
}

// TestOddErrors: each of these errors, returned or used in a panic, is an ordinary failure.
func TestOddErrors(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"returned", "panicked"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t)
			queue := a.Queue("orders")
			calls := testapp.NewLedger()
			a.Handle(queue, 4, func(msg *message.Message) error {
				identity := string(msg.Payload)
				calls.Add(identity)
				if how == "panicked" {
					panic(odd[identity])
				}
				return odd[identity]
			})
			a.Run()
			for identity := range odd {
				testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(identity)})
			}
			got := letters(t, queue, len(odd))
			assert.Equal(t, keys(odd), keys(got))
			for identity, letter := range got {
				exhausted(t, letter, "3")
				reason, _ := letter.Headers[recordkey.Reason].(string)
				assert.True(t, utf8.ValidString(reason), identity)
				assert.LessOrEqual(t, len(reason), 1024, identity)
				kind, _ := letter.Headers[recordkey.ErrorType].(string)
				assert.NotEmpty(t, kind, identity)
				assert.LessOrEqual(t, len(kind), 255, identity)
			}
			same(t, 3, calls.Counts(), keys(odd)...)
			empty(t, queue)
			assert.Empty(t, a.Events(retry.GivenBack))
		})
	}
}
