package observe

import (
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/middleware"
)

// traceHooks returns the hooks that make spans.
func traceHooks(_ trace.TracerProvider, _ middleware.Observed) middleware.Hooks {
	return middleware.Hooks{}
}
