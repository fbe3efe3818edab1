package door

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestResultsOfAPublisher(t *testing.T) {
	of := func(kind, cause error) error { return &publish.Error{Err: kind, Cause: cause} }
	down := errors.New("the cause")
	type results map[retry.PublishResult]int
	for name, row := range map[string]struct {
		err      error
		messages int
		want     results
	}{
		"returned":               {of(publish.ErrUnroutable, down), 1, results{retry.PublishReturned: 1}},
		"one of three returned":  {of(publish.ErrUnroutable, down), 3, results{retry.PublishReturned: 1, retry.PublishConfirmed: 2}},
		"nacked":                 {of(publish.ErrNacked, nil), 1, results{retry.PublishNacked: 1}},
		"unconfirmed":            {of(publish.ErrNotConfirmed, down), 1, results{retry.PublishUnconfirmed: 1}},
		"connection lost":        {of(publish.ErrNotConnected, down), 1, results{retry.PublishUnconfirmed: 1}},
		"refused, none was sent": {of(publish.ErrRefused, down), 3, results{retry.PublishRefused: 1, retry.PublishFailed: 2}},
		"closed, none was sent":  {of(retry.ErrClosed, nil), 3, results{retry.PublishFailed: 3}},
		"no exchange":            {of(publish.ErrNotDeclared, down), 2, results{retry.PublishFailed: 2}},
		"not of the publisher":   {down, 2, results{retry.PublishFailed: 2}},
		"wrapped":                {fmt.Errorf("the app: %w", of(publish.ErrNacked, nil)), 1, results{retry.PublishNacked: 1}},
		"several of five":        {errors.Join(of(publish.ErrNacked, nil), of(publish.ErrUnroutable, down), of(publish.ErrNacked, nil)), 5, results{retry.PublishNacked: 2, retry.PublishReturned: 1, retry.PublishConfirmed: 2}},
		"several that were lost": {errors.Join(of(publish.ErrNotConnected, down), of(publish.ErrNotConnected, down)), 2, results{retry.PublishUnconfirmed: 2}},
		"refused, among several": {errors.Join(of(publish.ErrRefused, down), of(publish.ErrNacked, nil)), 3, results{retry.PublishRefused: 1, retry.PublishNacked: 1, retry.PublishConfirmed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, results(resultsOf(row.err, row.messages)))
		})
	}
}
