package rabbitmq

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// version is a broker's, as its server properties tell it.
type version struct {
	major, minor, patch int
	text                string
}

func brokerVersion(connection *amqp091.Connection) version {
	text, _ := connection.Properties["version"].(string)
	return parseVersion(text)
}

// parseVersion reads "4.0.5" and "4.1.0-rc.1"; what it cannot read is zero, which no rule below is about.
func parseVersion(text string) version {
	v := version{text: text}
	for i, word := range strings.SplitN(text, ".", 3) {
		digits := strings.TrimFunc(word, func(r rune) bool { return r < '0' || r > '9' })
		digits, _, _ = strings.Cut(digits, "-")
		number, err := strconv.Atoi(digits)
		if err != nil {
			return v
		}
		*[]*int{&v.major, &v.minor, &v.patch}[i] = number
	}
	return v
}

func (v version) String() string { return v.text }

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// dropsAtDeliveryLimit: 4.0 gave quorum queues a delivery limit of 20 that counts nacks; 4.3 counts them no more.
func (v version) dropsAtDeliveryLimit() bool { return v.atLeast(4, 0) && !v.atLeast(4, 3) }

// refusesTransient: 4.3 has no queues any more that are neither durable nor exclusive.
func (v version) refusesTransient() bool { return v.atLeast(4, 3) }

// losesCycles: 3.13.0 to 3.13.2 take a message that is dead-lettered, published again and dead-lettered again for a cycle,
// and drop it.
func (v version) losesCycles() bool { return v.major == 3 && v.minor == 13 && v.patch < 3 }

// judgeBroker refuses what the broker would, with the reason, and warns once of what it may lose.
func (w *workQueues) judgeBroker(work topology.Queue, v version, logger watermill.LoggerAdapter) error {
	if !work.Durable && v.refusesTransient() {
		return fmt.Errorf("%w: work queue %q is not durable, which RabbitMQ %s refuses: set AMQP.Queue.Durable, as amqp.NewDurableQueueConfig does",
			topology.ErrTransientQueue, work.Name, v)
	}
	if v.losesCycles() {
		w.warnOnce("version", logger, fmt.Sprintf("RabbitMQ %s can drop messages that are dead-lettered more than once: update to 3.13.3 or later", v))
	}
	if w.config.QueueType == topology.Classic {
		w.warnOnce("classic", logger, "QueueType is classic: a tier hands expired messages on without a confirm, so one is lost when a broker dies at "+
			"the wrong moment; in a cluster a classic queue is not replicated either. Quorum keeps the promise")
	}
	return nil
}

func (w *workQueues) warnOnce(about string, logger watermill.LoggerAdapter, text string) {
	w.mu.Lock()
	warned := w.warned[about]
	w.warned[about] = true
	w.mu.Unlock()
	if !warned {
		logger.Error("Warning: "+text, nil, nil) // Watermill's loggers have nothing between Error and Info
	}
}
