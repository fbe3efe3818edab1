package backend

import (
	"context"
	"errors"
	"strings"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
)

// program is the name of the client, for those who look at the server.
const program = "wmretry"

// silent takes the log lines of go-redis, which go to stderr by default.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func openRedis(o *opening) (*Store, error) {
	redis.SetLogger(silent{})
	first := *o.Address.url
	hosts := o.Address.hosts()
	first.Host = hosts[0]
	options, err := redis.ParseURL(first.String())
	if err != nil {
		return nil, err
	}
	options.ClientName = program
	if o.TLS != nil {
		options.TLSConfig = o.TLS
	}
	var client redis.UniversalClient = redis.NewClient(options)
	if len(hosts) > 1 {
		client = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: hosts, Username: options.Username, Password: options.Password, TLSConfig: options.TLSConfig,
			ClientName: program,
		})
	}
	end := func() { _ = client.Close() }
	if err := client.Ping(o.ctx).Err(); err != nil {
		end()
		return nil, err
	}
	store, err := redisretry.Letters(redisretry.Config{Client: client, Prefix: o.Prefix}, o.Logger)
	return relayed(store, err, end)
}

func openNATS(o *opening) (*Store, error) {
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

func openPostgreSQL(o *opening) (*Store, error) {
	config, err := pgx.ParseConfig(o.Address.String())
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = program
	if o.TLS != nil {
		own := o.TLS.Clone()
		if own.ServerName == "" {
			own.ServerName = config.Host
		}
		config.TLSConfig, config.Fallbacks = own, nil
	}
	db := stdlib.OpenDB(*config)
	end := func() { _ = db.Close() }
	if err := db.PingContext(o.ctx); err != nil {
		end()
		return nil, err
	}
	store, err := postgresretry.Letters(postgresretry.Config{DB: db, Prefix: o.Prefix, Table: o.Table}, o.Logger)
	return relayed(store, err, end)
}

func openKafka(o *opening) (*Store, error) {
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
