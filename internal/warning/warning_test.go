package warning_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/warning"
)

// leveled is a logger with a level for warnings.
type leveled struct {
	*watermill.CaptureLoggerAdapter
	warnings []string
}

func (l *leveled) Warn(msg string, fields watermill.LogFields) {
	l.warnings = append(l.warnings, msg+" "+fields["queue"].(string))
}

func TestWarningUsesTheLevelOfTheLogger(t *testing.T) {
	fields := watermill.LogFields{"queue": "orders"}

	own := &leveled{CaptureLoggerAdapter: watermill.NewCaptureLogger()}
	warning.Log(own, "not protected", fields)
	assert.Equal(t, []string{"not protected orders"}, own.warnings)
	assert.Empty(t, own.Captured(), "no other level gets it too")

	plain := watermill.NewCaptureLogger()
	warning.Log(plain, "not protected", fields)
	require.Len(t, plain.Captured()[watermill.ErrorLogLevel], 1)
	line := plain.Captured()[watermill.ErrorLogLevel][0]
	assert.Equal(t, "not protected", line.Msg)
	assert.Equal(t, fields, line.Fields)
	assert.EqualError(t, line.Err, "a warning: the app continues")

	var text bytes.Buffer // what a filter for WARN and above shows
	filtered := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn})
	warning.Log(watermill.NewSlogLogger(slog.New(filtered)), "not protected", fields)
	assert.Contains(t, text.String(), `msg="not protected" queue=orders error="a warning: the app continues"`)

	assert.NotPanics(t, func() { warning.Log(nil, "not protected", fields) })
}
