package observe

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// instruments makes the instruments of a meter, and keeps the errors.
type instruments struct {
	meter  metric.Meter
	faults []error
}

func made[I any](from *instruments, instrument I, err error) I {
	if err != nil {
		from.faults = append(from.faults, err)
	}
	return instrument
}

func (i *instruments) err() error { return errors.Join(i.faults...) }

func (i *instruments) counter(m Metric) metric.Int64Counter {
	c, err := i.meter.Int64Counter(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Description))
	return made(i, c, err)
}

func (i *instruments) histogram(m Metric) metric.Float64Histogram {
	h, err := i.meter.Float64Histogram(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Description),
		metric.WithExplicitBucketBoundaries(m.Buckets...))
	return made(i, h, err)
}

// An observable is an instrument whose values are read at a collection.
type observable struct {
	whole   metric.Int64Observable
	seconds metric.Float64Observable
}

func (i *instruments) observable(m Metric) observable {
	unit, description := metric.WithUnit(m.Unit), metric.WithDescription(m.Description)
	switch {
	case m.Kind == Counter:
		c, err := i.meter.Int64ObservableCounter(m.Name, unit, description)
		return observable{whole: made(i, c, err)}
	case m.Unit == "s":
		g, err := i.meter.Float64ObservableGauge(m.Name, unit, description)
		return observable{seconds: made(i, g, err)}
	default:
		g, err := i.meter.Int64ObservableGauge(m.Name, unit, description)
		return observable{whole: made(i, g, err)}
	}
}

func (o observable) instrument() metric.Observable {
	if o.seconds != nil {
		return o.seconds
	}
	return o.whole
}

func (o observable) observe(to metric.Observer, value float64, labels metric.ObserveOption) {
	if o.seconds != nil {
		to.ObserveFloat64(o.seconds, value, labels)
	} else {
		to.ObserveInt64(o.whole, int64(value), labels)
	}
}

// labelled returns the option for values of the labels of a metric, in their order.
func labelled(m Metric, values ...string) metric.MeasurementOption {
	attributes := make([]attribute.KeyValue, len(m.Labels))
	for i, name := range m.Labels {
		attributes[i] = attribute.String(name, labelText(values[i], maxLabel))
	}
	return metric.WithAttributeSet(attribute.NewSet(attributes...))
}
