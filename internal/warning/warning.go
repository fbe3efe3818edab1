// Package warning logs what needs attention; the app continues. A watermill.LoggerAdapter has no level between Error
// and Info.
package warning

import "github.com/ThreeDotsLabs/watermill"

// Logger is what a watermill.LoggerAdapter may implement to receive warnings at a level of their own.
type Logger interface {
	Warn(msg string, fields watermill.LogFields)
}

// Log logs a warning at the Warn level of the logger if the logger has one, otherwise at Info. A nil logger logs
// nothing.
func Log(logger watermill.LoggerAdapter, msg string, fields watermill.LogFields) {
	if own, ok := logger.(Logger); ok {
		own.Warn(msg, fields)
	} else if logger != nil {
		logger.Info(msg, fields)
	}
}
