package observe

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/propagation"
)

// Config configures Prometheus and OpenTelemetry. The zero value is ready for use.
type Config struct {
	// MaxSeries is how many combinations of labels each metric has at most. Further topics, handlers, reasons, queues
	// and tiers are counted with the value "other", in a few more series. With OpenTelemetry the SDK has a bound of
	// its own: 2,000, where the app has not set another one. From 1. The default is 10,000.
	MaxSeries int

	// WaitingEvery is how old the figures of what waits may be. They are asked for when the metrics are read, in the
	// background: a read gets those of the last look. Where a look takes long, the next one begins only after 20
	// times as long, so less than 5% of the time is spent on looks. Less than 0: nothing is asked for. The default is
	// 30 seconds.
	WaitingEvery time.Duration

	// WaitingTimeout is the deadline of a look. The default is 10 seconds.
	WaitingTimeout time.Duration

	// Propagator reads the producer's context from the metadata of a message, and writes that of an attempt into the
	// messages that its handler produces. The default is the one that the app has set with otel.SetTextMapPropagator,
	// or W3C Trace Context with Baggage where it has set none.
	Propagator propagation.TextMapPropagator
}

// Validate reports all faults in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	var faults []error
	if c.MaxSeries < 0 {
		faults = append(faults,
			fmt.Errorf("MaxSeries is %d: it must be 0 (the default, 10,000) or more", c.MaxSeries))
	}
	if c.WaitingTimeout < 0 {
		faults = append(faults,
			fmt.Errorf("WaitingTimeout is %v: it must be 0 (the default, 10s) or more", c.WaitingTimeout))
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() Config {
	if c.MaxSeries == 0 {
		c.MaxSeries = 10_000
	}
	if c.WaitingEvery == 0 {
		c.WaitingEvery = 30 * time.Second
	}
	if c.WaitingTimeout == 0 {
		c.WaitingTimeout = 10 * time.Second
	}
	return c
}
