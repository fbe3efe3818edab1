package redisretry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

var _ operate.Looker = reader{}

// lookScript returns how many messages of a return topic wait, how many are in flight, how many are due, and due since
// ARGV[2] milliseconds, and when the first that waits is due: -1 where there is none, or it is behind many in flight. A
// message whose lease has ended waits.
var lookScript = redis.NewScript(serverNow + `
local leased = 0
for _, id in ipairs(redis.call('HKEYS', KEYS[3])) do
	if tonumber(redis.call('ZSCORE', KEYS[1], id) or 0) > now then
		leased = leased + 1
	end
end
local first = -1
local some = redis.call('ZRANGE', KEYS[1], 0, 255, 'WITHSCORES')
for i = 1, #some, 2 do
	if tonumber(some[i + 1]) <= now or redis.call('HEXISTS', KEYS[3], some[i]) == 0 then
		first = tonumber(some[i + 1])
		break
	end
end
return {redis.call('ZCARD', KEYS[1]) - leased, leased, redis.call('ZCOUNT', KEYS[1], '-inf', now),
	redis.call('ZCOUNT', KEYS[1], '-inf', now - ARGV[2]), first}
`)

// Keys implements operate.Looker.
func (r reader) Keys(ctx context.Context) (keys []string, err error) {
	for tag := range slots {
		topics, err := r.client.SMembers(ctx, r.shared(r.prefix()+"."+strconv.Itoa(tag), "subscribed")).Result()
		if err != nil {
			return nil, err
		}
		for _, topic := range topics {
			keys = append(keys, strings.TrimPrefix(topic, r.names.Return("")))
		}
	}
	unknown, err := r.client.Exists(ctx, r.names.Dead(relaytopic.Unknown)).Result()
	if unknown > 0 {
		keys = append(keys, relaytopic.Unknown)
	}
	slices.Sort(keys)
	return keys, err
}

// Waiting implements operate.Looker.
func (r reader) Waiting(ctx context.Context) ([]operate.Waiting, error) {
	keys, err := r.Keys(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]operate.Waiting, len(keys))
	for i, key := range keys {
		w := &all[i]
		w.Name = key
		topic := r.names.Return(key)
		counts, err := lookScript.Run(ctx, r.client, r.keys(topic), topic,
			operate.OverdueAfter.Milliseconds()).Int64Slice()
		if err != nil {
			return nil, err
		}
		w.Retries, w.InFlight, w.Due, w.Overdue = int(counts[0]), int(counts[1]), int(counts[2]), int(counts[3])
		if counts[4] >= 0 {
			w.NextDue = time.UnixMilli(counts[4]).UTC()
		}
		dead, err := r.client.XLen(ctx, r.names.Dead(key)).Result()
		if err != nil {
			return nil, err
		}
		w.Dead = int(dead)
		if w.Consumers, err = r.consumers(ctx, key); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// consumers returns how many processes read the app's topic of a key. A process asks the server again all the time.
func (r reader) consumers(ctx context.Context, key string) (*int, error) {
	group, stream, found := strings.Cut(key, ".")
	if !found || relaytopic.Key(group, stream) != key { // it has a hash
		return nil, nil
	}
	consumers, err := r.client.XInfoConsumers(ctx, stream, group).Result()
	if isMissing(err) || isNoGroup(err) {
		return nil, nil
	}
	count := 0
	for _, consumer := range consumers {
		if consumer.Idle < r.lease {
			count++
		}
	}
	if count == 0 && err == nil {
		if info, err := infoOf(ctx, r.client, "server"); err != nil || !seesReads(info) {
			return nil, nil
		}
	}
	return &count, err
}

// seesReads reports whether a server counts a read that finds nothing as a sign of life of a consumer. Before 7.2, the
// process of an empty topic looks as one that is gone.
func seesReads(info map[string]string) bool { return isAtLeast(info, 7, 2) }

// isAtLeast reports whether a server has a version or a later one, also where its version cannot be read.
func isAtLeast(info map[string]string, wantMajor, wantMinor int) bool {
	var major, minor int
	_, err := fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor)
	return err != nil || major > wantMajor || major == wantMajor && minor >= wantMinor
}

// nodes calls look for each server that has keys, one after the other.
func (r reader) nodes(ctx context.Context, look func(name string, client redis.UniversalClient) error) error {
	cluster, isCluster := r.client.(*redis.ClusterClient)
	if !isCluster {
		return look("Redis", r.client)
	}
	var mu sync.Mutex
	return cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		return look("Redis at "+node.Options().Addr, node)
	})
}

// Check implements operate.Looker.
func (r reader) Check(ctx context.Context) (checked operate.Checked, err error) {
	err = r.nodes(ctx, func(name string, client redis.UniversalClient) error {
		info, err := infoOf(ctx, client)
		if redis.HasErrorPrefix(err, "NOPERM") {
			checked.Unseen = append(checked.Unseen, "the settings of "+name+": its user may not call INFO")
			return nil
		}
		if err != nil {
			return err
		}
		checked.Server = "Redis " + info["redis_version"]
		checkInfo(&checked, name, info)
		begun := time.Now()
		now, err := client.Time(ctx).Result()
		if err == nil {
			checked.Clock(name, begun, now)
		}
		return err
	})
	if err != nil {
		return checked, err
	}
	waiting, err := r.Waiting(ctx)
	for _, w := range waiting {
		if w.Consumers != nil && *w.Consumers == 0 {
			checked.Found("consumers", w.Name, "no process has read its topic within a lease ("+r.lease.String()+")",
				"start the app of this group, or remove the group if it is gone for good")
		}
	}
	return checked, err
}

// infoOf returns the fields of INFO, of all sections where none is named.
func infoOf(ctx context.Context, client redis.UniversalClient, sections ...string) (map[string]string, error) {
	text, err := client.Info(ctx, sections...).Result()
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = value
	}
	return fields, err
}

// checkInfo applies the rules to the fields of INFO.
func checkInfo(checked *operate.Checked, name string, info map[string]string) {
	found := func(rule, what string, do ...string) { checked.Found(rule, name, what, do...) }
	if !isAtLeast(info, 6, 2) {
		found("version", "its version is "+info["redis_version"], "upgrade to 6.2 or later")
	}
	used, err1 := strconv.ParseFloat(info["used_memory"], 64)
	limit, err2 := strconv.ParseFloat(info["maxmemory"], 64)
	if policy := info["maxmemory_policy"]; limit > 0 && removesAny(policy) {
		found("eviction", "maxmemory-policy is "+policy+": it removes messages that wait when the memory is full",
			"redis-cli config set maxmemory-policy noeviction, and use another server for a cache")
	}
	if errors.Join(err1, err2) == nil && limit > 0 && used > 0.9*limit {
		found("memory", fmt.Sprintf("%.0f%% of maxmemory is used: a full server refuses copies, and messages stay in "+
			"flight", 100*used/limit), "raise maxmemory, or discard dead letters")
	}
	switch {
	case info["aof_enabled"] == "1" && info["aof_last_write_status"] == "err":
		found("persistence", "the append-only file cannot be written", "look at the server's log and its disk")
	case info["aof_enabled"] == "0" && info["rdb_last_bgsave_status"] == "err":
		found("persistence", "the last snapshot has failed", "look at the server's log and its disk")
	case info["aof_enabled"] == "0":
		found("persistence", "there is no append-only file: a crash loses all since the last snapshot, "+
			info["rdb_changes_since_last_save"]+" changes now",
			"redis-cli config set appendonly yes, and set it in the configuration")
	}
}
