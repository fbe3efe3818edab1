package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// A server is a broker that is measured.
type server struct {
	uri        string
	version    string // such as "4.0.5"
	management *rabbithole.Client
	process    int // its process on this machine; 0: not known
}

// newServer connects to a broker. AMQP_MANAGEMENT_URL is only used where the broker is that of AMQP_URL.
func newServer(address string, fromEnvironment bool) (*server, error) {
	if name, uri, named := strings.Cut(address, "="); named && !strings.Contains(name, "://") {
		address = uri
	}
	endpoint := ""
	if fromEnvironment {
		endpoint = os.Getenv("AMQP_MANAGEMENT_URL")
	}
	client, err := broker.Client(address, endpoint)
	if err != nil {
		return nil, err
	}
	s := &server{uri: address, management: client}
	s.management.SetTimeout(10 * time.Minute) // it deletes virtual hosts with thousands of queues
	overview, err := s.management.Overview()
	if err != nil {
		return nil, fmt.Errorf("the management API does not answer: %w", err)
	}
	s.version = overview.RabbitMQVersion
	if s.process, err = s.findProcess(); err != nil {
		return nil, err
	}
	return s, nil
}

// findProcess returns the process of a broker on this machine, or 0. A node that has just started does not report it
// at first.
func (s *server) findProcess() (int, error) {
	for deadline := time.Now().Add(3 * statisticsInterval); ; time.Sleep(100 * time.Millisecond) {
		nodes, err := s.management.ListNodes()
		if err != nil {
			return 0, err
		}
		if len(nodes) == 1 && nodes[0].OsPid != "" {
			process, err := strconv.Atoi(string(nodes[0].OsPid))
			if err != nil {
				return 0, fmt.Errorf("the process id of the broker: %w", err)
			}
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", process))
			if err != nil || !strings.HasPrefix(string(name), "beam") {
				return 0, nil
			}
			return process, nil
		}
		if time.Now().After(deadline) {
			return 0, nil
		}
	}
}

// series is major and minor of the version.
func (s *server) series() string {
	parts := strings.SplitN(s.version, ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}

// newer reports whether the broker has at least this version.
func (s *server) newer(major, minor int) bool {
	var haveMajor, haveMinor int
	_, _ = fmt.Sscanf(s.version, "%d.%d", &haveMajor, &haveMinor)
	return haveMajor > major || haveMajor == major && haveMinor >= minor
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

// memory is what the broker counts as used. It is up to statisticsInterval old.
func (s *server) memory() int64 {
	nodes, err := s.management.ListNodes()
	if err != nil {
		return 0
	}
	var sum int64
	for _, node := range nodes {
		sum += int64(node.MemUsed)
	}
	return sum
}

// memoryNow waits until the figure is one of now.
func (b *bench) memoryNow() int64 {
	if !b.short {
		time.Sleep(statisticsInterval + 2*time.Second)
	}
	return b.memory()
}

// sampled calls a function every now and then until stop, which waits for the last call.
func sampled(every time.Duration, do func()) (stop func()) {
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-ending:
				return
			}
		}
	}()
	return func() { close(ending); <-ended }
}

// peak samples a figure until stop, which returns the largest one.
func peak(every time.Duration, sample func() int64) (stop func() int64) {
	largest := sample()
	end := sampled(every, func() { largest = max(largest, sample()) })
	return func() int64 {
		end()
		return max(largest, sample())
	}
}

// processorTime is how much processor time, of user and system, a process of this machine has used, read from Linux's
// /proc.
func processorTime(process int) time.Duration {
	const tick = 10 * time.Millisecond // of utime and stime
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	_, after, found := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(after))
	if err != nil || !found || len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick
}

// residentMemory is the memory of a process of this machine that is in use, read from Linux's /proc; 0 elsewhere.
func residentMemory(process int) int64 {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", process))
	fields := strings.Fields(string(statm))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
