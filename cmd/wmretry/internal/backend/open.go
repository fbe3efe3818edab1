package backend

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// program is the name of the client, for those who look at the server.
const program = "wmretry"

// silent takes the log lines of go-redis, which go to stderr by default.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// silence is of the whole process, which can open several stores at the same time.
var silence = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

func openRedis(ctx context.Context, o Config) (*Store, error) {
	silence()
	first := *o.Address.url
	hosts := o.Address.hosts()
	first.Host = hosts[0]
	options, err := redis.ParseURL(first.String())
	if err != nil {
		return nil, o.misread(err)
	}
	options.ClientName = program
	if o.TLS != nil {
		options.TLSConfig = o.TLS
	}
	ofNodes := *options
	node := redis.NewClient(options)
	var client redis.UniversalClient = node
	end := func() { _ = client.Close() }
	if len(hosts) > 1 {
		end()
		client = cluster(hosts, ofNodes)
	}
	var nodes []string
	if err = client.Ping(ctx).Err(); err == nil && len(hosts) == 1 {
		nodes = announced(ctx, node)
	}
	// Each node of a cluster, or one name for all of them, leads to the others.
	if len(nodes) > 1 {
		end()
		client = cluster(hosts, ofNodes)
		within, cancel := context.WithTimeout(ctx, connectTimeout/2) // Open returns its own error after all of it
		defer cancel()
		if err = client.Ping(within).Err(); err != nil {
			// err is explained
			err = advised{fmt.Errorf("cannot connect to Redis at %s: it is a node of a cluster, whose nodes announce the "+
				"addresses %s, and these do not answer: %v; run the command where it reaches them, such as inside of the "+
				"network of the cluster", o.Address.Place(), strings.Join(nodes, ", "), err)}
		}
	}
	if err != nil {
		end()
		return nil, err
	}
	store, err := redisretry.Letters(redisretry.Config{Client: client, Prefix: o.Prefix}, o.Logger)
	return relayed(store, err, end)
}

// cluster returns the client of a Redis Cluster. Each node is reached with the options of the address.
func cluster(hosts []string, ofNodes redis.Options) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: hosts, NewClient: func(o *redis.Options) *redis.Client {
		own := ofNodes
		own.Addr, own.DB, own.MaxRetries = o.Addr, 0, cmp.Or(own.MaxRetries, o.MaxRetries)
		return redis.NewClient(&own)
	}})
}

// announced returns the addresses that the nodes of a Redis Cluster announce. A server that is no node has none.
func announced(ctx context.Context, node *redis.Client) []string {
	var all []string
	for _, part := range node.ClusterSlots(ctx).Val() {
		all = append(all, each.Of(part.Nodes, func(of redis.ClusterNode) string { return of.Addr })...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func openNATS(_ context.Context, o Config) (*Store, error) {
	options := []nats.Option{nats.Name(program), nats.Timeout(connectTimeout), nats.MaxReconnects(-1)}
	if o.TLS != nil {
		options = append(options, nats.Secure(o.TLS))
	}
	switch name, password, has := o.Address.User(); {
	case has && name == "":
		options = append(options, nats.Token(password))
	case has:
		options = append(options, nats.UserInfo(name, password))
	}
	conn, err := nats.Connect("nats://"+strings.Join(o.Address.hosts(), ",nats://"), options...)
	if err != nil {
		return nil, err
	}
	store, err := natsretry.Letters(natsretry.Config{Conn: conn, Prefix: o.Prefix}, o.Logger)
	return relayed(store, err, conn.Close)
}

func openPostgreSQL(ctx context.Context, o Config) (*Store, error) {
	config, err := pgx.ParseConfig(o.Address.String())
	if err != nil {
		return nil, o.misread(err)
	}
	config.RuntimeParams["application_name"] = program
	if o.TLS != nil {
		own := o.TLS.Clone()
		own.ServerName = cmp.Or(own.ServerName, config.Host)
		config.TLSConfig, config.Fallbacks = own, nil
	}
	db := stdlib.OpenDB(*config)
	store, err := postgresretry.Letters(postgresretry.Config{DB: db, Prefix: o.Prefix, Table: o.Table}, o.Logger)
	if err = ofFlags(err); err == nil {
		err = db.PingContext(ctx)
	}
	if err == nil && o.Table != "" {
		err = o.findTable(ctx, db)
	}
	return relayed(store, err, func() { _ = db.Close() })
}

// findTable returns an error where a table that a flag names is not there.
func (c Config) findTable(ctx context.Context, db *sql.DB) (err error) {
	var there bool
	quoted := pgx.Identifier(strings.Split(c.Table, ".")).Sanitize()
	err = db.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NOT NULL`, quoted).Scan(&there)
	if err == nil && !there {
		err = advised{fmt.Errorf("--table is %q, and the database of %s has no such table that the user can see: correct "+
			"the name, or start an app with it first, which makes the table", c.Table, c.Address.Where())}
	}
	return err
}

func openKafka(_ context.Context, o Config) (*Store, error) {
	config := sarama.NewConfig()
	config.ClientID, config.Version = program, sarama.V2_2_0_0
	net := &config.Net
	net.DialTimeout, net.ReadTimeout, net.WriteTimeout = connectTimeout, connectTimeout, connectTimeout
	if o.TLS != nil {
		config.Net.TLS.Enable, config.Net.TLS.Config = true, o.TLS
	}
	if name, password, has := o.Address.User(); has {
		config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, name, password
	}
	store, err := kafkaretry.Letters(kafkaretry.Config{Brokers: o.Address.hosts(), Sarama: config, Prefix: o.Prefix},
		o.Logger)
	if inner := errors.Unwrap(err); inner != nil { // it repeats the addresses
		err = inner
	}
	return relayed(store, err, func() {})
}

// Rabbit returns the configuration of a store on RabbitMQ.
func (c Config) Rabbit() deadletter.Config {
	return deadletter.Config{URI: c.Address.String(), TLS: c.TLS, Prefix: c.Prefix, Management: c.Management,
		AnyLimit: c.AnyLimit}
}

// ManagementOf returns where the management API of a broker is by default. It may not answer.
func ManagementOf(address Address) (string, error) {
	uri, err := amqp091.ParseURI(address.String())
	if err != nil {
		return "", errors.New("the address of the broker has a port or parameter that is not a number, or reserved " +
			"characters that are not percent-encoded")
	}
	scheme := map[string]string{"amqp": "http", "amqps": "https"}[uri.Scheme]
	return scheme + "://" + net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port+10_000)), nil
}

// openRabbitMQ connects once and closes the connection: errors of the address, the password, TLS and the virtual host
// come from here.
func openRabbitMQ(ctx context.Context, o Config) (*Store, error) {
	connection, err := amqp091.DialConfig(o.Address.String(), amqp091.Config{
		TLSClientConfig: o.TLS, Dial: func(network, address string) (net.Conn, error) {
			connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err == nil {
				deadline, _ := ctx.Deadline()
				err = connection.SetDeadline(deadline) // of the handshake
			}
			return connection, err
		},
	})
	if err != nil {
		return nil, o.refused(err)
	}
	_ = connection.CloseDeadline(time.Now().Add(time.Second))
	store, err := deadletter.Open(o.Rabbit(), o.Logger)
	if err != nil {
		return nil, advised{err}
	}
	return &Store{Store: store, Files: store, Rabbit: store}, nil
}

// refused adds what to do about what the broker has answered.
func (o Config) refused(err error) error {
	var refused *amqp091.Error
	if !errors.As(err, &refused) || refused.Code == amqp091.FrameError || errors.Is(err, amqp091.ErrClosed) {
		return err // the connection has broken
	}
	uri, _ := amqp091.ParseURI(o.Address.String())
	advice := fmt.Sprintf("check the virtual host %q, and that the user %q has permissions for it: rabbitmqctl "+
		"list_permissions -p %q", uri.Vhost, uri.Username, uri.Vhost)
	if refused.Code == amqp091.AccessRefused || errors.Is(err, amqp091.ErrCredentials) || errors.Is(err, amqp091.ErrSASL) {
		advice = fmt.Sprintf("check the password of %q (WMRETRY_URL or --password-file). The user guest may log in only "+
			"from the broker's own host, unless the broker permits more", uri.Username)
	}
	// err is explained
	return advised{fmt.Errorf("cannot connect to RabbitMQ at %s: %v; %s", o.Address.Place(), err, advice)}
}
