package configtest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// FieldsAreDecided fails when the amqp.Config of a major has a field that Connect does not know. The fields after
// "documented" are in the doc comment of Connect.
func FieldsAreDecided(t *testing.T, config reflect.Type) {
	t.Helper()
	decided := strings.Fields(`
		used: Connection.AmqpURI Connection.TLSConfig Connection.AmqpConfig Marshaler TopologyBuilder
		Exchange.GenerateName Exchange.Type Exchange.Durable Exchange.AutoDeleted Exchange.Internal
		Exchange.NoWait Exchange.Arguments
		Queue.Durable Queue.NoWait Queue.Arguments QueueBind.GenerateRoutingKey QueueBind.NoWait QueueBind.Arguments
		Consume.Exclusive Consume.NoLocal Consume.Arguments
		refused: Queue.AutoDelete Queue.Exclusive Publish.Transactional Consume.NoRequeueOnNack
		documented: Connection.Reconnect Queue.GenerateName
		Publish.GenerateRoutingKey Publish.Mandatory Publish.ConfirmDelivery Publish.Immediate
		Publish.ChannelPoolSize Consume.Consumer Consume.NoWait
		Consume.Qos.PrefetchCount Consume.Qos.PrefetchSize Consume.Qos.Global`)
	decided = slices.DeleteFunc(decided, func(word string) bool { return strings.HasSuffix(word, ":") })
	assert.ElementsMatch(t, leaves(config, ""), decided)
}

// leaves returns the paths of all fields that are not structs of the major.
func leaves(of reflect.Type, prefix string) (paths []string) {
	for i := range of.NumField() {
		field := of.Field(i)
		if field.Type.Kind() == reflect.Struct && strings.HasSuffix(field.Type.Name(), "Config") {
			paths = append(paths, leaves(field.Type, prefix+field.Name+".")...)
		} else {
			paths = append(paths, prefix+field.Name)
		}
	}
	return paths
}
