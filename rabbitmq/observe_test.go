package rabbitmq

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestResultsOfAPublisher(t *testing.T) {
	of := func(kind, cause error) error { return &publisher.PublishError{Err: kind, Cause: cause} }
	down := errors.New("the cause")
	type results map[retry.PublishResult]int
	for name, row := range map[string]struct {
		err      error
		messages int
		want     results
	}{
		"returned":               {of(publisher.ErrUnroutable, down), 1, results{retry.PublishReturned: 1}},
		"one of three returned":  {of(publisher.ErrUnroutable, down), 3, results{retry.PublishReturned: 1, retry.PublishConfirmed: 2}},
		"nacked":                 {of(publisher.ErrNacked, nil), 1, results{retry.PublishNacked: 1}},
		"unconfirmed":            {of(publisher.ErrNotConfirmed, down), 1, results{retry.PublishUnconfirmed: 1}},
		"connection lost":        {of(publisher.ErrNotConnected, down), 1, results{retry.PublishUnconfirmed: 1}},
		"refused, none was sent": {of(publisher.ErrRefused, down), 3, results{retry.PublishRefused: 1, retry.PublishFailed: 2}},
		"closed, none was sent":  {of(publisher.ErrClosed, nil), 3, results{retry.PublishFailed: 3}},
		"no exchange":            {of(publisher.ErrNotDeclared, down), 2, results{retry.PublishFailed: 2}},
		"not of the publisher":   {down, 2, results{retry.PublishFailed: 2}},
		"wrapped":                {fmt.Errorf("the app: %w", of(publisher.ErrNacked, nil)), 1, results{retry.PublishNacked: 1}},
		"several of five":        {errors.Join(of(publisher.ErrNacked, nil), of(publisher.ErrUnroutable, down), of(publisher.ErrNacked, nil)), 5, results{retry.PublishNacked: 2, retry.PublishReturned: 1, retry.PublishConfirmed: 2}},
		"several that were lost": {errors.Join(of(publisher.ErrNotConnected, down), of(publisher.ErrNotConnected, down)), 2, results{retry.PublishUnconfirmed: 2}},
		"refused, among several": {errors.Join(of(publisher.ErrRefused, down), of(publisher.ErrNacked, nil)), 3, results{retry.PublishRefused: 1, retry.PublishNacked: 1, retry.PublishConfirmed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, results(resultsOf(row.err, row.messages)))
		})
	}
}
