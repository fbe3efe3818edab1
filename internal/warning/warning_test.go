package warning_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

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
	assert.True(t, plain.Has(watermill.CapturedMessage{Level: watermill.InfoLogLevel, Msg: "not protected", Fields: fields}))
	assert.Empty(t, plain.Captured()[watermill.ErrorLogLevel])

	assert.NotPanics(t, func() { warning.Log(nil, "not protected", fields) })
}
