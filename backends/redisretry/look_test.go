package redisretry

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/operatetest"
)

// TestRulesOfInfo: each rule finds its fault, and none in a server that is well.
func TestRulesOfInfo(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change     map[string]string // of a server that is well
		rule, what string
	}{
		"well":             {},
		"version":          {map[string]string{"redis_version": "6.0.20"}, "version", "6.0.20"},
		"lowest version":   {map[string]string{"redis_version": "6.2.0"}, "", ""},
		"eviction":         {map[string]string{"maxmemory": "100", "maxmemory_policy": "allkeys-lfu"}, "eviction", "allkeys-lfu"},
		"no eviction":      {map[string]string{"maxmemory": "100", "maxmemory_policy": "volatile-lru"}, "", ""},
		"no limit":         {map[string]string{"maxmemory_policy": "allkeys-lru"}, "", ""},
		"memory":           {map[string]string{"maxmemory": "11"}, "memory", "91%"},
		"no file":          {map[string]string{"aof_enabled": "0", "rdb_changes_since_last_save": "7"}, "persistence", "7 changes now"},
		"failed append":    {map[string]string{"aof_last_write_status": "err"}, "persistence", "cannot be written"},
		"failed snapshots": {map[string]string{"aof_enabled": "0", "rdb_last_bgsave_status": "err"}, "persistence", "snapshot has failed"},
	} {
		t.Run(name, func(t *testing.T) {
			info := map[string]string{
				"redis_version": "7.0.15", "used_memory": "10", "maxmemory": "0", "maxmemory_policy": "noeviction",
				"aof_enabled": "1", "aof_last_write_status": "ok", "rdb_last_bgsave_status": "ok",
				"rdb_changes_since_last_save": "0",
			}
			maps.Copy(info, row.change)
			operatetest.Finds(t, func(c *operate.Checked) { checkInfo(c, "Redis", info) }, row.rule, "", row.what)
		})
	}
}

// clockOf answers INFO and TIME of a server with this time, and nothing else.
type clockOf time.Time

func (c clockOf) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c clockOf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c clockOf) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, command redis.Cmder) error {
		switch answer := command.(type) {
		case *redis.StringCmd:
			answer.SetVal("redis_version:7.2.0\r\naof_enabled:1\r\naof_last_write_status:ok\r\n")
		case *redis.TimeCmd:
			answer.SetVal(time.Time(c))
		default:
			command.SetErr(errors.ErrUnsupported)
		}
		return command.Err()
	}
}

// TestTheClockOfAServer: delays are kept by it.
func TestTheClockOfAServer(t *testing.T) {
	t.Parallel()
	for ahead, rule := range map[time.Duration]string{0: "", -time.Minute: "clock"} {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		client.AddHook(clockOf(time.Now().Add(ahead)))
		r := reader{newServer(Config{Client: client}, nil)}
		operatetest.Finds(t, func(c *operate.Checked) { *c, _ = r.Check(t.Context()) }, rule, "Redis", "its clock is -1m")
		assert.NoError(t, client.Close())
	}
}

// Before 7.2 a read that finds nothing leaves no trace: a process that waits is not told from one that is gone.
func TestWhichServersSeeAReadThatFindsNothing(t *testing.T) {
	for version, want := range map[string]bool{
		"6.2.14": false, "7.0.15": false, "7.2.0": true, "7.10.1": true, "8.0.2": true, "": true,
	} {
		assert.Equal(t, want, seesReads(map[string]string{"redis_version": version}), version)
	}
}
