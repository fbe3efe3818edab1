// Package redelivery reads how often the broker has delivered a message before.
package redelivery

// Count returns the count of the headers of a delivery, 0 where the broker does not count: only quorum queues do.
// RabbitMQ 4.3 counts failed deliveries in x-delivery-count and all of them in x-acquired-count; earlier versions have
// the first one only.
func Count(headers map[string]any) int64 {
	return max(integer(headers["x-delivery-count"]), integer(headers["x-acquired-count"]))
}

// Failed returns the count that is compared with the delivery limit of a queue. From RabbitMQ 4.3 on a nack does not
// count.
func Failed(headers map[string]any) int64 { return integer(headers["x-delivery-count"]) }

func integer(header any) int64 {
	switch n := header.(type) {
	case int64:
		return n
	case int32:
		return int64(n)
	case int16:
		return int64(n)
	case int8:
		return int64(n)
	case byte:
		return int64(n)
	default:
		return 0
	}
}
