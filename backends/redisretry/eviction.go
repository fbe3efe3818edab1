package redisretry

import (
	"context"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// watchEviction logs once that a server can remove what waits. It asks until the server has answered: a server that is
// away, or still reads its data, is no reason to leave the warning out. A user may not be allowed to ask.
func (s *server) watchEviction() {
	for failures := 0; s.ctx.Err() == nil; failures++ {
		policies, err := s.eviction()
		if err == nil || redis.HasErrorPrefix(err, "NOPERM") {
			s.warnOfEviction(policies)
			return
		}
		_ = pauses.Sleep(s.ctx, pauses.After(failures))
	}
}

func (s *server) warnOfEviction(policies []string) {
	for _, policy := range policies {
		if removesAny(policy) {
			s.logger.Error("Redis removes messages that wait when its memory is full: set maxmemory-policy to noeviction, "+
				"and use another server for a cache", nil, watermill.LogFields{"maxmemory_policy": policy})
			return
		}
	}
}

// removesAny reports whether a policy removes keys without a time to live. The keys of this package have none, but the
// lock of a redrive.
func removesAny(policy string) bool { return strings.HasPrefix(policy, "allkeys-") }

// eviction returns the policies of all servers that have keys and a limit of their memory.
func (s *server) eviction() (policies []string, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, commandTimeout)
	defer cancel()
	cluster, isCluster := s.client.(*redis.ClusterClient)
	if !isCluster {
		policy, err := policyOf(ctx, s.client)
		return []string{policy}, err
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		policy, err := policyOf(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		policies = append(policies, policy)
		return err
	})
	return policies, err
}

// policyOf returns what a server does when its memory is full, or "" where that has no limit.
func policyOf(ctx context.Context, client redis.UniversalClient) (string, error) {
	fields, err := infoOf(ctx, client, "memory")
	if err != nil {
		return "", err
	}
	if fields["maxmemory"] == "0" {
		return "", nil
	}
	return fields["maxmemory_policy"], nil
}
