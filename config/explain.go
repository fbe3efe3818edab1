package config

import (
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// explain says what the broker refused and what to do about it.
func explain(what, name string, err error) error {
	var broker *amqp091.Error
	if !errors.As(err, &broker) {
		return fmt.Errorf("cannot %s %q: %w", what, name, err)
	}
	hint := ""
	switch broker.Code {
	case amqp091.PreconditionFailed:
		if c, ok := conflictOf(err); ok {
			return &ArgumentConflictError{Object: name, Argument: c.argument, Want: orNone(c.want), Have: orNone(c.have), Cause: broker}
		}
	case amqp091.AccessRefused:
		hint = ": give the user the permissions of the README"
	case amqp091.NotFound:
		hint = ": it does not exist, Topology.Declare declares it"
	}
	return fmt.Errorf("cannot %s %q: %w%s", what, name, err, hint)
}

// ArgumentConflictError says that an exchange or queue exists with another argument. The broker answers 406
// PRECONDITION_FAILED; arguments of an existing object cannot be changed.
type ArgumentConflictError struct {
	Object   string // the queue or exchange
	Argument string // x-message-ttl and its like; durable, type
	Want     string // the value asked for, "none" where there is none
	Have     string // the value it has
	Cause    *amqp091.Error
}

func (e *ArgumentConflictError) Error() string {
	text := fmt.Sprintf("%q exists with argument %s=%s, wanted is %s: delete it once it is empty, or ask for what it has",
		e.Object, e.Argument, e.Have, e.Want)
	if e.Cause == nil {
		return text
	}
	return text + ": " + e.Cause.Error()
}

func (e *ArgumentConflictError) Unwrap() error {
	if e.Cause == nil {
		return nil
	}
	return e.Cause
}

// conflict is what a 406 tells about the first argument that differs: pointers are nil for none.
type conflict struct {
	argument   string
	want, have *string
	haveType   string
}

// The broker's three ways to say it, the same from 3.10 to 4.3.
var conflictText = regexp.MustCompile(`inequivalent arg '([^']+)' for .*: ` +
	`received (?:none|the value '(.*)' of type '[^']*'|'(.*)') but current is (?:(none)|the value '(.*)' of type '([^']*)'|'(.*)')$`)

func conflictOf(err error) (conflict, bool) {
	var broker *amqp091.Error
	if !errors.As(err, &broker) || broker.Code != amqp091.PreconditionFailed {
		return conflict{}, false
	}
	at := conflictText.FindStringSubmatchIndex(broker.Reason)
	if at == nil {
		return conflict{}, false
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
	c := conflict{argument: *group(1), want: group(2, 3), have: group(5, 7)}
	if kind := group(6); kind != nil {
		c.haveType = *kind
	}
	return c, true
}

// value is what the queue has, as it is declared; like gives the type where the broker does not tell it.
func (c conflict) value(like any) any {
	if c.have == nil {
		return nil
	}
	_, likeText := like.(string)
	if c.haveType == "longstr" || c.haveType == "" && likeText {
		return *c.have
	}
	if number, err := strconv.ParseInt(*c.have, 10, 64); err == nil {
		return number
	}
	if truth, err := strconv.ParseBool(*c.have); err == nil {
		return truth
	}
	return *c.have
}

func orNone(text *string) string {
	if text == nil {
		return "none"
	}
	return *text
}

func sortedKeys(keys iter.Seq[string]) []string { return slices.Sorted(keys) }
