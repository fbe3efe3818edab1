package main

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const (
	tenants    = 20
	tenantKey  = "tenant"
	sickTenant = "7"
	tenantWork = 100 * time.Millisecond // a call of a healthy tenant
)

// measureTenants compares how long the messages of 19 tenants take while one is sick with as long a time before.
func measureTenants(b *bench) error {
	for _, sick := range []struct {
		claim string
		call  func() error
	}{
		{"tenant_sick", func() error { time.Sleep(5 * time.Second); return errMeasured }},
		{"tenant_slow", func() error { time.Sleep(30 * time.Second); return nil }},
	} {
		err := b.in("tenants", func(uri string) error { return b.measureTenant(uri, sick.claim, sick.call) })
		if err != nil {
			return fmt.Errorf("%s: %w", sick.claim, err)
		}
	}
	return nil
}

func (b *bench) measureTenant(uri, claim string, sick func() error) error {
	seconds := b.Size(90, 8)
	c := perQueue.config(uri, backoff.Exponential(time.Second, 5, 4))
	c.Policy.Breaker = &retry.Breaker{Key: func(msg *message.Message) string { return msg.Metadata.Get(tenantKey) }}
	var isSick atomic.Bool
	var mu sync.Mutex
	var late []time.Duration
	handled := map[string]bool{}
	rabbit, stop, err := handling{Concurrency: workers}.consume(c, func(msg *message.Message) error {
		if isSick.Load() && msg.Metadata.Get(tenantKey) == sickTenant {
			if err := sick(); err != nil {
				return err
			}
		} else {
			time.Sleep(tenantWork)
		}
		mu.Lock()
		defer mu.Unlock()
		if handled[msg.UUID] = true; msg.Metadata.Get(tenantKey) != sickTenant {
			sent, _ := strconv.ParseInt(msg.Metadata.Get("sent"), 10, 64)
			late = append(late, time.Since(time.Unix(0, sent)))
		}
		return nil
	}, work)
	if err != nil {
		return err
	}
	defer stop()
	sent := 0
	phase := func() (p99 time.Duration, err error) { // each tenant sends a message a second, the sick one four
		mu.Lock()
		late = nil
		mu.Unlock()
		for i := range seconds * (tenants + 3) {
			tenant := strconv.Itoa(i % (tenants + 3))
			if i%(tenants+3) >= tenants {
				tenant = sickTenant
			}
			msg := message.NewMessage(idOf(sent), payload)
			msg.Metadata.Set(tenantKey, tenant)
			msg.Metadata.Set("sent", strconv.FormatInt(time.Now().UnixNano(), 10))
			sent++
			if err := rabbit.Publisher().Publish(work, msg); err != nil {
				return 0, err
			}
			time.Sleep(time.Second / (tenants + 3))
		}
		mu.Lock()
		defer mu.Unlock()
		return claims.Percentile(late, 0.99), nil
	}
	before, err := phase()
	if err != nil {
		return err
	}
	isSick.Store(true)
	during, err := phase()
	if err != nil {
		return err
	}
	isSick.Store(false)
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		mu.Lock()
		left := sent - len(handled)
		mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d messages are not handled three minutes after the tenant is healthy", left)
		}
	}
	b.note("%s: 99 percent of the others in %v, before %v", claim, during.Round(time.Millisecond),
		before.Round(time.Millisecond))
	b.claim(claim, float64(during)/float64(before))
	return nil
}
