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
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
)

const childVariable = "CONFORMANCE_CHILD"

// victim is an app in a process of its own, which kills itself before a copy is published, or after that and before the ack.
type victim struct {
	Target, URL   string
	Group, Prefix string
	Topics        []string
	To            string // in the name of the topic that is published to
	Nth           int32  // of such publishes
	Before        bool   // it, rather than after
}

// child runs this process as a victim where it was started as one, and does not return then.
func child() {
	settings := os.Getenv(childVariable)
	if settings == "" {
		return
	}
	go func() { // a parent that dies ends us, too
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var v victim
	if err := json.Unmarshal([]byte(settings), &v); err != nil {
		panic(err)
	}
	app := crashApp(v.Group, v.Prefix)
	app.Failures = func(publisher message.Publisher) message.Publisher {
		return &killer{Publisher: publisher, victim: v}
	}
	for _, target := range targets {
		if target.name != v.Target {
			continue
		}
		_, err := start(target.open(v.URL, logger()), app, v.Topics, func(msg *message.Message) error {
			record, _ := middleware.ReadRecord(msg.Metadata)
			_, _ = os.Stdout.WriteString(fmt.Sprintln("try", msg.UUID, record.Failures))
			if record.Failures == 0 {
				return errDown
			}
			return nil
		})
		if err != nil {
			panic(err)
		}
		select {}
	}
	panic("no target " + v.Target)
}

type killer struct {
	message.Publisher
	victim
	published atomic.Int32
}

func (k *killer) Publish(topic string, messages ...*message.Message) error {
	fatal := strings.Contains(topic, k.To) && k.published.Add(1) >= k.Nth
	if fatal && k.Before {
		time.Sleep(300 * time.Millisecond) // an ack that came too soon would be sent by now
		die()
	}
	err := k.Publisher.Publish(topic, messages...)
	if fatal && err == nil {
		die()
	}
	return err
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// crash: processes die before and after the publish of a copy, on its way to the tier and on its way back.
func crash(t *testing.T, f *fixture) {
	const messages = 20
	topics := f.topics(2)
	app := crashApp("g"+f.name, "p"+f.name)
	f.declare(app.Prefix, topics...)
	handle := func(msg *message.Message) error {
		if f.ledger.add(msg).failures == 0 {
			return errDown
		}
		return nil
	}
	f.run(app, topics, handle).stop() // where a consumer group gets only what comes after it
	f.publish(topics, ids(messages)...)
	for _, v := range []victim{
		{Nth: 1}, {Nth: 4, Before: true}, {To: f.wayBack(), Nth: 3}, {To: f.wayBack(), Nth: 2, Before: true},
	} {
		v.Target, v.URL, v.Group, v.Prefix, v.Topics = f.target.name, f.url, app.Group, app.Prefix, topics
		f.die(v)
	}
	f.run(app, topics, handle)
	f.await(messages, 1, patience)
	f.settle()
}

// wayBack is what the relay publishes to when a message is due; a broker that does that itself cannot be crashed there.
func (f *fixture) wayBack() string {
	if strings.HasPrefix(f.target.name, "rabbitmq") || f.target.name == "postgres-delayed" {
		return ""
	}
	return ".return."
}

// die runs a victim to its end. What it handled to the end counts.
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
	require.True(f.t, timer.Stop(), "the victim has not come to its end within %v: %s", patience, words)
	status, known := process.ProcessState.Sys().(syscall.WaitStatus)
	require.True(f.t, known && status.Signaled(), "the victim was to be killed: %v", err)
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
		Limit: 3 * time.Second, HandlerLimit: 3 * time.Second,
	}
}
