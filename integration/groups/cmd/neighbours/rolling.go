package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
)

const (
	rests  = 20 * time.Second // between two restarts, and before the first and after the last one
	target = 2 * time.Second  // of the good messages' lateness at the 99th percentile
)

// rollingRestart restarts the nodes of a cluster one after the other, while messages of a group wait on its tiers. The good work queues
// are quorum queues. The bad ones are classic queues, one on each node, which are away while their node is. An app on each node consumes
// all of them, and publishes to them.
func rollingRestart(nodes []node, tool string, settings settings) ([]string, error) {
	s := newShop()
	s.own = settings.own
	var good, bad []string
	for i := range 3 * len(nodes) {
		good = append(good, s.queue(fmt.Sprintf("good-q%d", i)))
	}
	for i, n := range nodes {
		queue := s.queue(fmt.Sprintf("bad-c%d", i))
		bad = append(bad, queue)
		err := with(n.uri, func(channel *amqp091.Channel) error {
			_, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "classic", "x-queue-leader-locator": "client-local"})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	defer s.remove(nodes[0].uri, append(good, bad...)...)
	var apps []*config.Connection
	for _, n := range nodes {
		for _, queues := range []struct {
			names     []string
			arguments amqp091.Table
		}{{good, nil}, {bad, amqp091.Table{"x-queue-type": "classic", "x-queue-leader-locator": "client-local"}}} {
			rabbit, stop, err := s.consume(n.uri, queues.arguments, queues.names...)
			if err != nil {
				return nil, err
			}
			defer stop()
			apps = append(apps, rabbit)
		}
	}
	feeding, stop := context.WithCancel(context.Background())
	defer stop()
	var fed sync.WaitGroup
	fed.Go(func() { s.feed(feeding, apps, append(good, bad...), settings.rate) })
	time.Sleep(rests)
	began := time.Now()
	var fault error
	for _, n := range nodes {
		began := time.Now()
		if fault = restart(tool, n); fault != nil {
			break
		}
		fmt.Printf("%s restarted within %v\n", n.name, time.Since(began).Round(time.Second))
		time.Sleep(rests)
	}
	took := time.Since(began)
	stop()
	fed.Wait()
	if fault != nil {
		return nil, fault
	}
	lateness, lost, twice := s.wait(retried, isGood)
	series, claimed := strings.Split(nodes[0].name, "-")[0], "group_rolling_restart"
	if settings.own {
		claimed = "own_tiers_rolling_restart"
	}
	claims := []string{late(claimed+"_good_p99", series, lateness, target)}
	s.printLate(began)
	lateOfBad, lostOfBad, twiceOfBad := s.wait(retried, isBad)
	late(claimed+"_classic", series, lateOfBad, retried)
	fmt.Printf("%s: %d nodes within %v, %d good and %d bad messages, lost=%d twice=%d\n",
		claimed, len(nodes), took.Round(time.Second), len(lateness), len(lateOfBad), lost+lostOfBad, twice+twiceOfBad)
	claims = append(claims, fmt.Sprintf("claim %s_lost@%s measured=%d target=0 %s", claimed, series, lost+lostOfBad,
		map[bool]string{true: "ok", false: "missed"}[lost+lostOfBad == 0]))
	if lost+lostOfBad > 0 {
		return claims, fmt.Errorf("lost=%d messages", lost+lostOfBad)
	}
	return claims, nil
}

// printLate prints when the good messages were due that came more than a second late.
func (s *shop) printLate(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seconds := map[int]int{}
	for _, m := range s.seen {
		if isGood(m.queue) && m.back.Sub(m.due) > time.Second {
			seconds[int(m.due.Sub(began).Seconds())]++
		}
	}
	for _, second := range slices.Sorted(maps.Keys(seconds)) {
		fmt.Printf("due %d s after the first restart began: %d messages more than a second late\n", second, seconds[second])
	}
}

// feed publishes to the queues in turn. A message that one app cannot publish is published by the next one: it may arrive twice.
func (s *shop) feed(ctx context.Context, apps []*config.Connection, queues []string, rate int) {
	slots := make(chan struct{}, 500)
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			queue, id := queues[i%len(queues)], fmt.Sprintf("%d", i)
			s.expect(id, queue, time.Time{})
			for try := range 600 {
				if apps[(i+try)%len(apps)].Publisher().Publish(queue, message.NewMessage(id, make([]byte, 256))) == nil {
					return
				}
				time.Sleep(500 * time.Millisecond)
			}
			s.forget(id)
		})
	}
}

// restart stops a node in order, and starts it again.
func restart(tool string, n node) error {
	if err := command(tool, "ctl", n.name, "stop"); err != nil {
		return err
	}
	for deadline := time.Now().Add(3 * time.Minute); ; {
		err := command(tool, "start", n.name) // it does nothing as long as the process runs
		if err == nil {
			err = with(n.uri, func(*amqp091.Channel) error { return nil })
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Second)
	}
}

func command(tool string, verb ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	words := append(strings.Fields(tool), verb...)
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Stderr = os.Stderr
	command.WaitDelay = time.Second // the node that it starts may keep the pipe open
	if err := command.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %w", strings.Join(words, " "), err)
	}
	return nil
}
