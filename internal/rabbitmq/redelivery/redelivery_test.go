package redelivery_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
)

func TestCount(t *testing.T) {
	for _, headers := range []map[string]any{
		{"x-delivery-count": int64(3)}, {"x-delivery-count": int32(3)}, {"x-delivery-count": int16(3)}, {"x-delivery-count": int8(3)},
		{"x-delivery-count": byte(3)}, {"x-acquired-count": int64(3)}, {"x-delivery-count": int64(1), "x-acquired-count": int64(3)},
	} {
		assert.EqualValues(t, 3, redelivery.Count(headers), headers)
	}
	for _, headers := range []map[string]any{nil, {"x-delivery-count": "3"}, {"x-delivery-count": int64(-1)}, {"x-death": []any{}}} {
		assert.Zero(t, redelivery.Count(headers), headers)
	}
}
