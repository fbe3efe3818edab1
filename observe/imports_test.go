package observe

import (
	_ "github.com/ThreeDotsLabs/watermill"
	_ "github.com/stretchr/testify/assert"
	_ "go.opentelemetry.io/otel"
	_ "go.opentelemetry.io/otel/exporters/prometheus"
	_ "go.opentelemetry.io/otel/sdk/metric"
	_ "go.opentelemetry.io/otel/sdk/trace"
	_ "go.opentelemetry.io/otel/sdk/trace/tracetest"
	_ "go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
)
