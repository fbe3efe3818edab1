package main

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	"github.com/prometheus/procfs"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A server is a broker that is measured.
type server struct {
	uri        string
	version    string // such as "4.0.5"
	management *rabbithole.Client
	process    int // its process on this machine; 0: not known
}

// newServer connects to a broker. AMQP_MANAGEMENT_URL is that of AMQP_URL.
func newServer(address string) (*server, error) {
	uri, endpoint := address, ""
	if name, rest, named := strings.Cut(address, "="); named && !strings.Contains(name, "://") {
		uri = rest
	}
	if address == os.Getenv("AMQP_URL") {
		endpoint = os.Getenv("AMQP_MANAGEMENT_URL")
	}
	client, err := broker.Client(uri, endpoint)
	if err != nil {
		return nil, err
	}
	client.SetTimeout(10 * time.Minute) // it deletes virtual hosts with thousands of queues
	overview, err := client.Overview()
	if err != nil {
		return nil, fmt.Errorf("the management API does not answer: %w", err)
	}
	s := &server{uri: uri, management: client, version: overview.RabbitMQVersion}
	s.process, err = s.findProcess()
	return s, err
}

// findProcess returns the process of a broker on this machine, or 0. A node that has just started does not report it
// at first.
func (s *server) findProcess() (int, error) {
	var reported string
	for deadline := time.Now().Add(3 * statisticsInterval); reported == ""; time.Sleep(100 * time.Millisecond) {
		nodes, err := s.management.ListNodes()
		if err != nil || time.Now().After(deadline) {
			return 0, err
		}
		if len(nodes) == 1 {
			reported = string(nodes[0].OsPid)
		}
	}
	number, err := strconv.Atoi(reported)
	if err != nil {
		return 0, fmt.Errorf("the process id of the broker: %w", err)
	}
	process, err := procfs.NewProc(number)
	if err != nil {
		return 0, nil
	}
	if name, _ := process.Comm(); !strings.HasPrefix(name, "beam") {
		return 0, nil
	}
	return number, nil
}

// series is major and minor of the version.
func (s *server) series() string {
	parts := strings.SplitN(s.version, ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}

// in runs a function with the address of a new virtual host, which is deleted afterwards, with all its queues.
func (s *server) in(name string, do func(uri string) error) error {
	uri, remove, err := s.vhost(name)
	if err != nil {
		return err
	}
	defer remove()
	return do(uri)
}

func (s *server) vhost(name string) (uri string, remove func(), err error) {
	uri, end, err := broker.Host(s.management, s.uri, "bench-"+name)
	return uri, func() {
		if err := end(); err != nil {
			fmt.Fprintf(os.Stderr, "bench: virtual host %s stays: %v\n", uri[strings.LastIndex(uri, "/")+1:], err)
		}
	}, err
}

// statisticsInterval is how old the figures of the management API can be.
const statisticsInterval = 5 * time.Second

// used returns the processor time of a process, of user and system. It is 0 where the process is not on this machine,
// or the machine has no /proc.
func used(process int) time.Duration {
	known, err := procfs.NewProc(process)
	if err != nil {
		return 0
	}
	stat, err := known.Stat()
	if err != nil {
		return 0
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

// spentBy returns the processor time that this process and the broker's use from now on, when it is called, for each
// of so many messages, in µs.
func (s *server) spentBy() (each func(messages int) (own, broker float64)) {
	ownBefore, brokerBefore := used(os.Getpid()), used(s.process)
	return func(messages int) (float64, float64) {
		own, broker := used(os.Getpid())-ownBefore, used(s.process)-brokerBefore
		return float64(own.Microseconds()) / float64(messages), float64(broker.Microseconds()) / float64(messages)
	}
}

// connected waits until a virtual host has as many connections as its apps open, and returns their names.
func (s *server) connected(uri string, want int) (names []string, err error) {
	for deadline := time.Now().Add(claims.Patience); len(names) != want; time.Sleep(100 * time.Millisecond) {
		all, err := s.management.ListVhostConnections(path.Base(uri))
		if err != nil {
			return nil, err
		}
		names = nil
		for _, c := range all {
			names = append(names, c.Name)
		}
		if len(names) > want || time.Now().After(deadline) {
			return nil, fmt.Errorf("%d connections are open, %d were expected", len(names), want)
		}
	}
	return names, nil
}
