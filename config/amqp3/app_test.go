package amqp3

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/configtest"
)

func TestValuesOfAnApp(t *testing.T) {
	t.Parallel()
	c := amqp.NewDurablePubSubConfig("amqp://shop@localhost/", amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
	c.Connection.TLSConfig, c.Connection.AmqpConfig = &tls.Config{ServerName: "broker"}, &amqp091.Config{Vhost: "shop"}
	c.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: time.Second, BackoffMaxInterval: time.Minute}
	c.Publish = amqp.PublishConfig{GenerateRoutingKey: func(topic string) string { return "to " + topic }, Transactional: true, Immediate: true}
	c.Queue.Exclusive, c.Queue.AutoDelete, c.Queue.Arguments = true, true, amqp091.Table{"of": "queue"}
	c.Consume = amqp.ConsumeConfig{
		Consumer: "tag", Exclusive: true, NoLocal: true, NoRequeueOnNack: true, Arguments: amqp091.Table{"of": "consumer"},
		Qos: amqp.QosConfig{PrefetchCount: 3, PrefetchSize: 4},
	}
	configtest.HasAllValues(t, appOf(c))
	assert.Equal(t, "_watermill_amqp_redelivered", appOf(c).RedeliveredKey)
}
