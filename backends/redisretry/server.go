package redisretry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

// server is what the publishers and subscribers of a connection share.
type server struct {
	client   redis.UniversalClient
	names    relaytopic.Names
	lease    time.Duration
	logger   watermill.LoggerAdapter
	consumer string       // the name of this process, in all groups
	leases   atomic.Int64 // numbers their tokens

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	ended  sync.WaitGroup // done when the hubs and watchEviction have ended

	mu      sync.Mutex
	hubs    map[hubKey]*hub
	watches map[string]*inflight.Watch // the watches, by tag on Redis Cluster, else one
}

// A hubKey is a consumer group, and a stream where a command cannot have several streams.
type hubKey struct{ group, stream string }

func newServer(config Config, logger watermill.LoggerAdapter) *server {
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "process"
	}
	s := &server{
		client: config.Client, names: config.names(), lease: config.lease(), logger: logger,
		consumer: fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8]), hubs: map[hubKey]*hub{},
		watches: map[string]*inflight.Watch{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// close ends the connections that wait for messages, and the looks.
func (s *server) close() {
	s.mu.Lock()
	s.cancel()
	hubs, watches := s.hubs, slices.Collect(maps.Values(s.watches))
	s.hubs = map[hubKey]*hub{}
	s.mu.Unlock()
	for _, w := range watches { // their looks end at the same time, because the context has
		w.Close()
	}
	for _, h := range hubs {
		h.interrupt()
	}
	ended := make(chan struct{})
	go func() {
		s.ended.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return
	case <-time.After(2 * blockTime): // the server does not answer
	}
	for _, h := range hubs {
		h.disconnect()
	}
	<-ended
}

// commandTimeout bounds the commands that do not end with a caller's context: a network that drops packets must not
// keep Close. The timeouts of the Client bound each try of them.
const commandTimeout = 5 * time.Second

// command returns the context of such commands.
func (s *server) command() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), commandTimeout)
}

// anySlots reports whether a command may have keys of several hash slots.
func (s *server) anySlots() bool {
	_, ok := s.client.(*redis.Client)
	return ok
}

// slots is the number of the hash tags of a prefix.
const slots = 16

// tag returns the hash tag of a name: names of one prefix share a few, so that one command reads about all of them.
func (s *server) tag(name string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	return s.prefix() + "." + strconv.Itoa(int(hash.Sum32()%slots))
}

func (s *server) prefix() string {
	prefix, _, _ := strings.Cut(s.names.Return(""), ".return.")
	return prefix
}

func (s *server) shared(tag, kind string) string {
	return s.prefix() + ".returns:{" + tag + "}:" + kind
}

func (s *server) index(tag string) string     { return s.shared(tag, "index") }
func (s *server) givenBack(tag string) string { return s.shared(tag, "given-back") }

// subscribed is a set of the return topics that handlers have subscribed to.
func (s *server) subscribed(topic string) string { return s.shared(s.tag(topic), "subscribed") }

// keys returns the KEYS of the scripts of a return topic.
func (s *server) keys(topic string) []string {
	tag := s.tag(topic)
	key := func(kind string) string { return topic + ":{" + tag + "}:" + kind }
	return []string{key("due"), key("messages"), key("owners"), s.index(tag)}
}

// createGroup creates a consumer group that begins with the oldest entry, and its stream.
func (s *server) createGroup(ctx context.Context, stream, group string) error {
	err := s.client.XGroupCreateMkStream(ctx, stream, group, "0").Err()
	if redis.HasErrorPrefix(err, "BUSYGROUP") {
		return nil
	}
	return err
}

// isNoGroup reports whether a consumer group or its stream is gone. A command that waits is ended then. A script of
// Redis 6.2 has the code inside of its error.
func isNoGroup(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "NOGROUP") || redis.HasErrorPrefix(err, "UNBLOCKED"))
}

// isMissing reports whether a key does not exist.
func isMissing(err error) bool { return err != nil && strings.Contains(err.Error(), "no such key") }

var errClosed = errors.New("the connection is closed")
