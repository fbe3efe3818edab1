package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

const childVariable = "CONFORMANCE_CHILD"

// victim is an app in a process of its own. The process kills itself before a copy is published, or between the publish and
// the ack.
type victim struct {
	Backend, URL  string
	Group, Prefix string
	Topics        []string
	To            string // a part of the name of the topic that is published to
	Nth           int32  // which of these publishes ends the process
	Before        bool   // the process ends before the publish, not after
	Redrive       string // the topic of the dead letters that it redrives; empty: it runs the app
}

// child runs the victim where this process was started as one. It then does not return.
func child() {
	settings := os.Getenv(childVariable)
	if settings == "" {
		return
	}
	go func() { // the process must not outlive its parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var v victim
	if err := json.Unmarshal([]byte(settings), &v); err != nil {
		panic(err)
	}
	app := crashApp(v.Group, v.Prefix)
	app.Hook = &killer{victim: v}
	backend, err := registry.Find(v.Backend)
	if err != nil {
		panic(err)
	}
	if v.Redrive != "" {
		redriveAll(backend.Open(v.URL, logger()), app, v.Redrive)
	}
	retries, err := backend.Open(v.URL, logger()).Connect(app)
	if err != nil {
		panic(err)
	}
	router := newRouter()
	handle := func(msg *message.Message) error {
		record, _ := retry.ReadRecord(msg.Metadata)
		_, _ = os.Stdout.WriteString(fmt.Sprintln("try", msg.UUID, record.Failures))
		if record.Failures == 0 {
			return errDown
		}
		return nil
	}
	for i, topic := range v.Topics {
		retries.AddConsumerHandler(router, handlerName(i), topic, handle, oneInFlight)
	}
	panic(router.Run(noContext))
}

// oneInFlight is what every backend has: a process that dies causes a duplicate for each message in flight.
var oneInFlight = retry.Options{Concurrency: 1}

// killer ends the victim at a publish.
type killer struct {
	victim
	published atomic.Int32
}

func (k *killer) BeforeCopy(topic string) {
	if k.Before && k.fatal(topic) {
		time.Sleep(300 * time.Millisecond) // an ack that was sent too early reaches the server in this time
		die()
	}
}

func (k *killer) AfterCopy(topic string) {
	if !k.Before && k.fatal(topic) {
		die()
	}
}

func (k *killer) fatal(topic string) bool {
	return strings.Contains(topic, k.To) && k.published.Add(1) >= k.Nth
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// crash: processes die before and after the publish of a copy, on the way to the tier and on the way back.
func crash(t *testing.T, f *fixture) {
	const messages = 20
	topics := f.topics(2)
	app := crashApp("g"+f.name, "p"+f.name)
	handle := f.ledger.failing(1)
	first := f.run(app, topics, handle, oneInFlight) // the consumer group must exist before the messages are published
	first.stop()
	back := "" // without a relay the server brings a message back, and no publish of the app is part of that
	if f.Expect.Relayed {
		back = ".return."
	}
	f.publish(topics, ids(messages)...)
	for _, v := range []victim{
		{Nth: 1}, {Nth: 4, Before: true}, {To: back, Nth: 3}, {To: back, Nth: 2, Before: true},
	} {
		v.Backend, v.URL, v.Group, v.Prefix, v.Topics = f.Name, f.url, app.Group, app.Prefix, topics
		f.die(v)
	}
	f.run(app, topics, handle, oneInFlight)
	f.await(messages, 1, patience)
	f.settle()
}

// die runs a victim until it is dead, and adds the tries that it reported to the ledger.
func (f *fixture) die(v victim) {
	f.t.Helper()
	settings, err := json.Marshal(v)
	require.NoError(f.t, err)
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), childVariable+"="+string(settings))
	process.Stderr = os.Stderr
	_, err = process.StdinPipe()
	require.NoError(f.t, err)
	output, err := process.StdoutPipe()
	require.NoError(f.t, err)
	require.NoError(f.t, process.Start())
	timer := time.AfterFunc(patience, func() { _ = process.Process.Kill() })
	words, err := io.ReadAll(output)
	require.NoError(f.t, err)
	err = process.Wait()
	require.True(f.t, timer.Stop(), "the victim did not end within %v; its output: %s", patience, words)
	status, known := process.ProcessState.Sys().(syscall.WaitStatus)
	require.True(f.t, known && status.Signaled(), "the victim ended without a signal: %v", err)
	for line := range strings.Lines(string(words)) {
		one := try{at: time.Now()}
		_, err := fmt.Sscanf(line, "try %s %d", &one.id, &one.failures)
		require.NoError(f.t, err)
		f.ledger.put(one)
	}
}

func crashApp(group, prefix string) backends.App {
	return backends.App{
		Group: group, Prefix: prefix, Schedule: backoff.Schedule{500 * time.Millisecond},
		Limit: 3 * time.Second, HandlerLimit: 3 * time.Second, Lease: 5 * time.Second,
	}
}
