// Package warning logs what an operator must see; the app continues. A watermill.LoggerAdapter has no level between
// Error and Info, and filters for warnings leave Info out.
package warning

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
)

// Logger is what a watermill.LoggerAdapter may implement to receive warnings at a level of their own.
type Logger interface {
	Warn(msg string, fields watermill.LogFields)
}

// errContinues is the error of a warning that is logged as an error.
var errContinues = errors.New("a warning: the app continues")

// Log logs a warning at the Warn level of the logger if the logger has one, otherwise as an error. A nil logger logs
// nothing.
func Log(logger watermill.LoggerAdapter, msg string, fields watermill.LogFields) {
	if own, ok := logger.(Logger); ok {
		own.Warn(msg, fields)
	} else if logger != nil {
		logger.Error(msg, errContinues, fields)
	}
}
