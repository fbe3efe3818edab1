package options

import (
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

const (
	defaultPublishTimeout = 30 * time.Second
	defaultMaxHold        = 10 * time.Minute
	defaultMaxDelay       = 30 * 24 * time.Hour
)

// Clone returns a copy that shares no list and no Breaker with p: what is changed in one does not change the other.
func Clone(p retry.Policy) retry.Policy {
	p.Schedule, p.Rules, p.ExtraTiers = slices.Clone(p.Schedule), slices.Clone(p.Rules), slices.Clone(p.ExtraTiers)
	if p.Breaker != nil {
		own := *p.Breaker
		p.Breaker = &own
	}
	return p
}

// WithDefaults returns a Clone with the defaults of PublishTimeout, MaxHold and MaxDelay.
func WithDefaults(p retry.Policy) retry.Policy {
	p = Clone(p)
	if p.PublishTimeout == 0 {
		p.PublishTimeout = defaultPublishTimeout
	}
	if p.MaxHold == 0 {
		p.MaxHold = defaultMaxHold
	}
	if p.MaxDelay == 0 {
		delays := slices.Concat(p.Schedule, p.ExtraTiers)
		for _, rule := range p.Rules {
			delays = append(append(delays, rule.Then.Schedule...), rule.Then.Delay)
		}
		p.MaxDelay = max(defaultMaxDelay, slices.Max(append(delays, 0)))
	}
	return p
}
