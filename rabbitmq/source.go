package rabbitmq

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// place is equal for builders that can publish to each other's tiers. Two names of one broker are not equal.
type place struct {
	host   string
	port   int
	vhost  string
	prefix naming.Prefix
	// A publisher declares a deleted tier again, and the other builder must then accept it.
	queueType topology.QueueType
	group     string
	arguments string // of tiers and dead letters
}

// address returns where the app connects to, without a password.
func (c *core) address() amqp091.URI {
	uri, _ := amqp091.ParseURI(c.app.URI) // validated
	if vhost := c.connection().Vhost; vhost != "" {
		uri.Vhost = vhost
	}
	return uri
}

// place describes the broker and the prefix, for errors.
func (c *core) place() string {
	uri := c.address()
	address := url.URL{Scheme: uri.Scheme, Host: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), Path: "/"}
	if uri.Vhost != "/" {
		address.Path, address.RawPath = "/"+uri.Vhost, "/"+url.PathEscape(uri.Vhost)
	}
	return fmt.Sprintf("%s (prefix %s)", address.String(), c.prefix)
}

// newSource returns the source of the messages that an owner's subscribers deliver.
func (c *core) newSource(owner any, name, subscribe string, config middleware.TieredRetryConfig) *middleware.Source {
	uri := c.address()
	arguments := fmt.Sprint(c.topology.DeadLetters, c.topology.TierArguments, c.topology.DeadLetterArguments) // sorted, without types
	return &middleware.Source{
		Owner: owner, Name: name, Subscribe: subscribe,
		Broker: place{
			uri.Host, uri.Port, uri.Vhost, c.prefix, cmp.Or(c.topology.QueueType, topology.Quorum), c.topology.TierGroup, arguments,
		},
		CheckPublisher:                checkPublisher,
		DeclaredTiers:                 config.DeclaredTiers,
		GenerateRetryDestination:      config.GenerateRetryDestination,
		GenerateDeadLetterDestination: config.GenerateDeadLetterDestination,
	}
}

// checkPublisher refuses watermill-amqp's own publisher, of every major. It publishes copies to an exchange named as the tier's routing
// key, which it declares itself and which has no queue: every copy is dropped without an error.
func checkPublisher(p message.Publisher) error {
	of := reflect.TypeOf(p)
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if !strings.HasPrefix(of.PkgPath(), "github.com/ThreeDotsLabs/watermill-amqp/") {
		return nil
	}
	return fmt.Errorf("it is watermill-amqp's own, %T: the copies of failed messages would go to no queue, and be lost without an error. "+
		"Use the publisher of Builder.NewPublisher", p)
}

// consuming is one configuration for watermill-amqp's subscriber.
type consuming struct {
	*core
	logger atomic.Pointer[watermill.LoggerAdapter] // of the subscriber
}

func (c *consuming) Declare(s app.Subscription) error {
	c.logger.Store(&s.Logger)
	return c.core.declare(s)
}

// warnUnclaimed logs, once for each builder, that handlers have no retry middleware.
func (c *consuming) warnUnclaimed(exchange, routingKey string) {
	logger := c.logger.Load()
	if logger == nil || !c.warned.CompareAndSwap(false, true) {
		return
	}
	from := fmt.Sprintf("queue %q", routingKey)
	if exchange != "" {
		from = fmt.Sprintf("exchange %q, routing key %q", exchange, routingKey)
	}
	warning.Log(*logger, fmt.Sprintf("A handler of messages of %s has no retry middleware: add that of %s, with "+
		"handler.AddMiddleware(retry.Middleware) or router.AddMiddleware(retry.Middleware). Until then a failed message comes back after up to 1 s, "+
		"until the delivery limit of its queue, if it has one, makes it a dead letter", from, c.source.Name), nil)
}
