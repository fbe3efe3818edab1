// Package refusal reads what RabbitMQ says when it refuses a declaration.
package refusal

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Conflict says that an object exists with another argument than was asked for. It has the fields of
// topology.ArgumentConflictError, into which it is converted.
type Conflict struct {
	Object   string
	Argument string
	Want     string
	Have     string
	Cause    *amqp091.Error
}

func (c *Conflict) Error() string { return c.Cause.Error() }

// Explain says what the broker refused and what to do about it: with a *Conflict where an argument differs.
func Explain(what, name string, err error) error {
	var broker *amqp091.Error
	if !errors.As(err, &broker) {
		return fmt.Errorf("cannot %s %q: %w", what, name, err)
	}
	hint := ""
	switch broker.Code {
	case amqp091.PreconditionFailed:
		if d, ok := DifferenceIn(err); ok {
			return &Conflict{Object: name, Argument: d.Argument, Want: orNone(d.want), Have: orNone(d.have), Cause: broker}
		}
	case amqp091.AccessRefused:
		hint = ": give the user the permissions of the README"
	case amqp091.NotFound:
		hint = ": it does not exist, Topology.Declare declares it"
	}
	return fmt.Errorf("cannot %s %q: %w%s", what, name, err, hint)
}

// IsCode tells whether the broker answered with this code.
func IsCode(err error, code int) bool {
	var broker *amqp091.Error
	return errors.As(err, &broker) && broker.Code == code
}

// Difference is what a 406 tells about the first argument that differs: pointers are nil for none.
type Difference struct {
	Argument   string
	want, have *string
	haveType   string
}

// The broker's three ways to say it, the same from 3.10 to 4.3.
var differenceText = regexp.MustCompile(`inequivalent arg '([^']+)' for .*: ` +
	`received (?:none|the value '(.*)' of type '[^']*'|'(.*)') but current is (?:(none)|the value '(.*)' of type '([^']*)'|'(.*)')$`)

// DifferenceIn reads it from the broker's words.
func DifferenceIn(err error) (Difference, bool) {
	var broker *amqp091.Error
	if !errors.As(err, &broker) || broker.Code != amqp091.PreconditionFailed {
		return Difference{}, false
	}
	at := differenceText.FindStringSubmatchIndex(broker.Reason)
	if at == nil {
		return Difference{}, false
	}
	group := func(numbers ...int) *string {
		for _, n := range numbers {
			if at[2*n] >= 0 {
				text := broker.Reason[at[2*n]:at[2*n+1]]
				return &text
			}
		}
		return nil
	}
	d := Difference{Argument: *group(1), want: group(2, 3), have: group(5, 7)}
	if kind := group(6); kind != nil {
		d.haveType = *kind
	}
	return d, true
}

// Value is what the queue has, as it is declared; like gives the type where the broker does not tell it.
func (d Difference) Value(like any) any {
	if d.have == nil {
		return nil
	}
	_, likeText := like.(string)
	if d.haveType == "longstr" || d.haveType == "" && likeText {
		return *d.have
	}
	if number, err := strconv.ParseInt(*d.have, 10, 64); err == nil {
		return number
	}
	if truth, err := strconv.ParseBool(*d.have); err == nil {
		return truth
	}
	return *d.have
}

func orNone(text *string) string {
	if text == nil {
		return "none"
	}
	return *text
}
