package deadletter

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ask"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/internal/users"
	"github.com/tieredretry/watermill-retry/letters"
)

// Config configures Open. Only URI is required.
type Config struct {
	// URI is the broker's address: amqp:// or amqps://. Errors and log lines contain its host, port and virtual host,
	// and never the rest.
	URI string

	// AMQP is the configuration of amqp091-go; nil means its defaults. TLS is the TLS configuration for amqps://
	// addresses. Only one of TLS and AMQP.TLSClientConfig may be set. Both are copied.
	AMQP *amqp091.Config
	TLS  *tls.Config

	// Prefix is that of the apps (rabbitmq.Settings.Prefix). It names the orphans and the exchange that they go
	// back through. The default is "retry".
	Prefix string

	// Management is the address of the management API, such as http://host:15672. Without user and password
	// it has those of URI. Status, Queues and Prune need it, and other methods use it to know the delivery limit
	// of a queue. The default is none.
	Management string

	// AnyLimit also reads queues whose letters can be lost by that: those with a delivery limit below 5, and those
	// whose limit can be reached where the user may not replace a letter by a copy. The default is to refuse both.
	AnyLimit bool

	// Marshal is that of the app's own marshaler. A redrive needs it only for letters with the header
	// retry_marshal_error, which that marshaler could not marshal when they died. The default is none: such letters
	// stay, and the redrive returns an error.
	Marshal func(*message.Message) (amqp091.Publishing, error)
}

// Validate reports all faults of the configuration. It does not connect.
func (c Config) Validate() error {
	all := append(wire.Config{URI: c.URI, AMQP: c.AMQP, TLS: c.TLS}.Faults(), naming.Of(c.Prefix).Validate())
	if c.Management != "" {
		all = append(all, faults.Of("Management", management.Validate(c.Management)))
	}
	return faults.Of("deadletter config", errors.Join(all...))
}

// plainConfig is a Config without its methods.
type plainConfig Config

// Format implements fmt.Formatter. It prints the configuration without the passwords in its addresses, whatever the
// verb as %v does: with a wrong verb, fmt prints what a pointer leads to.
func (c Config) Format(state fmt.State, _ rune) {
	c.URI, c.Management = wire.RedactedURI(c.URI), management.Redacted(c.Management)
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, 'v'), plainConfig(c))
}

// MarshalJSON implements json.Marshaler for a log: the JSON is a text, what Format prints with %+v.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("%+v", c)) }

const connectionName = "watermill-retry dead letters"

var _ letters.Store = (*Store)(nil)

// QueueOf returns the dead-letter queue of a work queue.
func QueueOf(work string) string { return naming.DeadQueue(work) }

// A Store is the dead letters and orphans of one virtual host. Its methods get the name of the queue in which the
// letters are: see QueueOf and Orphans. It is safe for concurrent use. Each call of a method has connections of its
// own, which it closes.
type Store struct {
	asker

	config Config
	dial   wire.Config
	uri    amqp091.URI
	prefix naming.Prefix
	logger watermill.LoggerAdapter

	life *users.Lifetime
}

// Open returns a Store. It does not connect: the methods do. A nil logger logs nothing.
func Open(config Config, logger watermill.LoggerAdapter) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	own := wire.Config{URI: config.URI, AMQP: config.AMQP, TLS: config.TLS}.Own(connectionName)
	config.AMQP, config.TLS = own.AMQP, own.TLS
	uri, _ := amqp091.ParseURI(config.URI) // it is valid
	s := &Store{
		config: config, dial: own, uri: uri, prefix: naming.Of(config.Prefix),
		life: users.NewLifetime(letters.ErrClosed), logger: logger.With(watermill.LogFields{"broker": own.Place()}),
	}
	s.asker = s.ask
	return s, nil
}

// Orphans returns the name of the queue of the orphans: <prefix>.orphans.
func (s *Store) Orphans() string { return s.prefix.Orphans() }

// Close ends all calls and waits for them, so do not call it in a loop of Browse or in a function of the options. It
// may be called several times. It returns nil.
func (s *Store) Close() error {
	s.life.Close()
	return nil
}

func (s *Store) connect(ctx context.Context) (*wire.Connection, error) {
	return s.dial.Connect(ctx, connectionName, nil)
}

func (s *Store) managementClient() (*management.Client, error) {
	if s.config.Management == "" {
		return nil, errors.New("Config.Management is empty: AMQP does not list queues; set the address of the " +
			"management API")
	}
	broker := management.Broker{
		Vhost: s.uri.Vhost, User: s.uri.Username, Password: s.uri.Password,
		TLS: s.dial.Client(connectionName).TLSClientConfig,
	}
	if s.config.AMQP != nil && s.config.AMQP.Vhost != "" { // amqp091-go prefers it to that of the address
		broker.Vhost = s.config.AMQP.Vhost
	}
	return management.New(s.config.Management, broker)
}

// Browse implements letters.Store. After an error of the broker the iteration ends with it: call Browse again.
// Where a loop has ended early, the error is only logged.
func (s *Store) Browse(ctx context.Context, queue string, filter letters.Filter) iter.Seq2[*letters.Letter, error] {
	return func(yield func(*letters.Letter, error) bool) {
		more := true
		err := s.browse(ctx, queue, filter, func(_ *amqp091.Delivery, l *letters.Letter) bool {
			more = yield(l, nil)
			return more
		})
		if err != nil && more {
			yield(nil, err)
		} else if err != nil { // the loop has ended before, and gets none
			s.logger.Error("A look at letters ended with an error", err, watermill.LogFields{"queue": queue})
		}
	}
}

// A visitor gets a letter, and reports whether it wants another one.
type visitor func(*amqp091.Delivery, *letters.Letter) bool

// browse calls visit for each letter that the filter selects, until it returns false.
func (s *Store) browse(ctx context.Context, queue string, filter letters.Filter, visit visitor) error {
	if err := filter.Validate(); err != nil {
		return err
	}
	ctx, end, err := s.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	b := browsing{Store: s, queue: queue, filter: filter, visit: visit, seed: maphash.MakeSeed(), most: -1}
	for {
		if err := b.once(ctx); !errors.Is(err, errCareful) {
			return err
		}
	}
}

// browsing is one call of browse.
type browsing struct {
	*Store
	queue   string
	filter  letters.Filter
	visit   visitor
	caution caution
	most    int // letters to look at; negative: all that are there

	seed   maphash.Seed
	seen   []uint64       // hashes of the IDs of the letters of this look
	before map[uint64]int // the letters of the look before, by hash: they come in another order
}

// once looks at the letters that were not seen before.
func (b *browsing) once(ctx context.Context) (err error) {
	connection, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	look, err := b.look(ctx, connection, b.queue, max(b.most, 0), b.most, b.caution, nil)
	if err != nil {
		return b.caution.after(look, err)
	}
	look.ordered = true
	defer func() { err = errors.Join(err, look.close(ctx)) }()
	for {
		d, err := look.next(ctx)
		if err != nil {
			b.most, b.before = look.total, map[uint64]int{} // another look is at as many letters
			for _, hash := range b.seen {
				b.before[hash]++
			}
			return b.caution.after(look, err)
		}
		if d == nil {
			return nil
		}
		l := read(d, b.queue, b.prefix)
		more := !b.isNew(l) || !b.filter.Match(l, time.Now()) || b.visit(d, l)
		if err := look.keep(ctx, d); err != nil || !more {
			return err
		}
	}
}

func (b *browsing) isNew(l *letters.Letter) bool {
	hash := maphash.String(b.seed, l.ID)
	if b.before[hash] > 0 {
		b.before[hash]--
		return false
	}
	b.seen = append(b.seen, hash)
	return true
}

// Export writes the letters of a queue that the filter selects, one line of JSON each, and removes none. It returns
// how many it wrote. See Import.
func (s *Store) Export(ctx context.Context, queue string, filter letters.Filter, to io.Writer) (int, error) {
	lines := redrive.Export{To: to}
	var failed error
	err := s.browse(ctx, queue, filter, func(d *amqp091.Delivery, l *letters.Letter) bool {
		if failed = lines.Add(&item{delivery: d, letter: l}); failed != nil {
			failed = fmt.Errorf("cannot export letter %q: %w", l.ID, failed)
		}
		return failed == nil
	})
	return lines.Letters, errors.Join(failed, err)
}

// asker is for the page and the command wmretry.
type asker = command.Asker

// ask asks the processes with handlers that have Order.Partitions.
func (s *Store) ask(ctx context.Context, r command.Request, wait time.Duration) (command.Asked, error) {
	asked := command.Asked{Prefix: string(s.prefix)}
	ctx, end, err := s.life.Begin(ctx)
	if err != nil {
		return asked, err
	}
	defer end()
	exchange := s.prefix.OrderControl()
	asked.Processes = s.countBound(ctx, exchange, wait)
	connection, err := s.connect(ctx)
	if err != nil {
		return asked, err
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })()
	channel, err := connection.OpenChannel()
	if err == nil {
		err = ask.All(ctx, channel, exchange, r, asked.Processes, wait, func(a command.Answer) {
			asked.Answers = append(asked.Answers, a)
		})
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return asked, err
}

// countBound returns how many processes get a request, or 0 where the management API does not answer.
func (s *Store) countBound(ctx context.Context, exchange string, wait time.Duration) int {
	client, err := s.managementClient()
	if err != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	bindings, _ := client.Bindings(ctx)
	maps.DeleteFunc(bindings, func(b management.Binding, _ bool) bool { return b.Exchange != exchange })
	return len(bindings)
}
