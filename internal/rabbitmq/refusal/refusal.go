// Package refusal reads the errors with which RabbitMQ refuses a declaration.
package refusal

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Explain adds to an error of the broker what was refused and what to do about it. It returns an *ArgumentConflictError
// when an argument differs.
func Explain(what, name string, err error) error {
	var broker *amqp091.Error
	if !errors.As(err, &broker) {
		return fmt.Errorf("cannot %s %q: %w", what, name, err)
	}
	hint := ""
	switch broker.Code {
	case amqp091.PreconditionFailed:
		if d, ok := DifferenceIn(err); ok {
			return &ArgumentConflictError{Object: name, Argument: d.Argument, Want: orNone(d.want),
				Have: orNone(d.have), Cause: broker}
		}
	case amqp091.AccessRefused:
		hint = ": give the user the permissions that docs/operations.md lists"
	case amqp091.NotFound:
		if hint = ": it does not exist. `wmretry topology apply` or Topology.Declare declares it"; IsAbsent(err) {
			hint = ": the broker knows the queue, and its node is down or is just creating it"
		}
	}
	return fmt.Errorf("cannot %s %q: %w%s", what, name, err, hint)
}

// IsCode reports whether the broker answered with this code.
func IsCode(err error, code int) bool {
	var broker *amqp091.Error
	return errors.As(err, &broker) && broker.Code == code
}

// IsCrash reports whether the broker has closed the connection because its own work has failed without an explanation,
// as when it delivers a message that it cannot write. A queue whose leader does not answer has one.
func IsCrash(err error) bool {
	var broker *amqp091.Error
	return errors.As(err, &broker) && broker.Code == amqp091.InternalError && broker.Reason == "INTERNAL_ERROR"
}

// IsAbsent reports whether the broker knows a queue but does not find it. Its node is down, or another client is just
// declaring it: before Khepri, RabbitMQ answers so for an instant.
func IsAbsent(err error) bool {
	var broker *amqp091.Error
	return errors.As(err, &broker) && broker.Code == amqp091.NotFound && strings.HasPrefix(broker.Reason,
		"NOT_FOUND - home node ")
}

// Difference is the first argument that differs, as a 406 names it. A nil value means none.
type Difference struct {
	Argument   string
	want, have *string
	haveType   string
}

// The broker has three ways to write a value. They are the same from RabbitMQ 3.10 to 4.3.
var differenceText = regexp.MustCompile(`inequivalent arg '([^']+)' for .*: ` +
	`received (?:none|the value '(.*)' of type '[^']*'|'(.*)') but current is ` +
	`(?:(none)|the value '(.*)' of type '([^']*)'|'(.*)')$`)

// DifferenceIn reads the difference from the text of the broker's error.
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

// Value returns the value of the existing object, with the type that a declaration needs. Where the broker does not
// name the type, it is that of like.
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

var vhostText = regexp.MustCompile(`^PRECONDITION_FAILED - inequivalent arg '[^']+' for .* in vhost '(.*)': `)

// VhostIn returns the virtual host that the broker names in a 406, or nothing.
func VhostIn(err *amqp091.Error) string {
	if err != nil {
		if match := vhostText.FindStringSubmatch(err.Reason); match != nil {
			return match[1]
		}
	}
	return ""
}
