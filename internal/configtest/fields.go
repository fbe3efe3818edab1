package configtest

import (
	"crypto/tls"
	"reflect"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
)

// Fields are the fields of an amqp.Config that the tests read or change.
type Fields struct {
	URI        *string
	TLS        **tls.Config
	Connection **amqp091.Config
	Reconnect  *time.Duration // the longest pause; nil without a reconnect configuration

	Queue, Exchange, QueueBind, Consume *amqp091.Table // their arguments

	Durable, Exclusive, AutoDelete, NoRequeueOnNack, Transactional, ConsumeExclusive *bool

	Marshaler    edge.Marshaler
	SetMarshaler func(edge.Marshaler)

	QueueName, ExchangeName func(topic string) string
}

// fieldsOf finds the fields of a *amqp.Config by their names, which are the same in all majors. It does not use the
// implementations of edge.Major, which are under test.
func fieldsOf(config any) Fields {
	root := reflect.ValueOf(config).Elem()
	marshaler := root.FieldByName("Marshaler")
	f := Fields{
		URI:        pointer[string](root, "Connection", "AmqpURI"),
		TLS:        pointer[*tls.Config](root, "Connection", "TLSConfig"),
		Connection: pointer[*amqp091.Config](root, "Connection", "AmqpConfig"),

		Queue:     pointer[amqp091.Table](root, "Queue", "Arguments"),
		Exchange:  pointer[amqp091.Table](root, "Exchange", "Arguments"),
		QueueBind: pointer[amqp091.Table](root, "QueueBind", "Arguments"),
		Consume:   pointer[amqp091.Table](root, "Consume", "Arguments"),

		Durable:          pointer[bool](root, "Queue", "Durable"),
		Exclusive:        pointer[bool](root, "Queue", "Exclusive"),
		AutoDelete:       pointer[bool](root, "Queue", "AutoDelete"),
		NoRequeueOnNack:  pointer[bool](root, "Consume", "NoRequeueOnNack"),
		Transactional:    pointer[bool](root, "Publish", "Transactional"),
		ConsumeExclusive: pointer[bool](root, "Consume", "Exclusive"),

		SetMarshaler: func(m edge.Marshaler) {
			if m == nil {
				marshaler.SetZero()
			} else {
				marshaler.Set(reflect.ValueOf(m))
			}
		},
		QueueName:    generator(root, "Queue"),
		ExchangeName: generator(root, "Exchange"),
	}
	f.Marshaler, _ = marshaler.Interface().(edge.Marshaler)
	if reconnect := at(root, "Connection", "Reconnect"); !reconnect.IsNil() {
		f.Reconnect = pointer[time.Duration](reconnect.Elem(), "BackoffMaxInterval")
	}
	return f
}

// valuesOf is fieldsOf for a configuration that does not have to change.
func valuesOf[C any](config C) Fields { return fieldsOf(&config) }

// withReconnect returns the configuration with a reconnect configuration.
func withReconnect[C any](config C) C {
	reconnect := at(reflect.ValueOf(&config).Elem(), "Connection", "Reconnect")
	reconnect.Set(reflect.New(reconnect.Type().Elem()))
	*fieldsOf(&config).Reconnect = time.Minute
	return config
}

func at(value reflect.Value, path ...string) reflect.Value {
	for _, name := range path {
		value = value.FieldByName(name)
	}
	return value
}

func pointer[T any](root reflect.Value, path ...string) *T {
	return at(root, path...).Addr().Interface().(*T)
}

func generator(root reflect.Value, object string) func(string) string {
	return at(root, object, "GenerateName").Convert(reflect.TypeFor[func(string) string]()).Interface().(func(string) string)
}
