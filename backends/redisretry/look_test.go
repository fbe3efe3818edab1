package redisretry

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/operate"
)

// TestRulesOfInfo: each rule finds its fault, and none in a server that is well.
func TestRulesOfInfo(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]map[string]string{
		"":            {},
		"version":     {"redis_version": "6.0.20"},
		"eviction":    {"maxmemory": "100", "maxmemory_policy": "allkeys-lfu"},
		"memory":      {"maxmemory": "11"},
		"persistence": {"aof_enabled": "0", "rdb_changes_since_last_save": "7"},
	} {
		var checked operate.Checked
		checkInfo(&checked, "Redis", infoWith(change))
		assert.Equal(t, want, rulesOf(checked), want)
	}
	for _, change := range []map[string]string{
		{"aof_last_write_status": "err"}, {"aof_enabled": "0", "rdb_last_bgsave_status": "err"},
	} {
		var checked operate.Checked
		checkInfo(&checked, "Redis", infoWith(change))
		assert.Equal(t, "persistence", rulesOf(checked), change)
		assert.Contains(t, checked.Findings[0].Do[0], "the server's log")
	}
	for _, info := range []map[string]string{
		{"maxmemory": "100", "maxmemory_policy": "volatile-lru"}, {"maxmemory_policy": "allkeys-lru"}, {"redis_version": "6.2.0"},
	} {
		var checked operate.Checked
		checkInfo(&checked, "Redis", infoWith(info))
		assert.Empty(t, checked.Findings, info)
	}
}

// infoWith returns the fields of a server that is well, with changes.
func infoWith(change map[string]string) map[string]string {
	info := map[string]string{
		"redis_version": "7.0.15", "used_memory": "10", "maxmemory": "0", "maxmemory_policy": "noeviction",
		"aof_enabled": "1", "aof_last_write_status": "ok", "rdb_last_bgsave_status": "ok", "rdb_changes_since_last_save": "0",
	}
	for name, value := range change {
		info[name] = value
	}
	return info
}

func rulesOf(checked operate.Checked) (rules string) {
	for _, f := range checked.Findings {
		rules += f.Rule
	}
	return rules
}

// Before 7.2 a read that finds nothing leaves no trace: a process that waits is not told from one that is gone.
func TestWhichServersSeeAReadThatFindsNothing(t *testing.T) {
	for version, want := range map[string]bool{
		"6.2.14": false, "7.0.15": false, "7.2.0": true, "7.10.1": true, "8.0.2": true, "": true,
	} {
		assert.Equal(t, want, seesReads(map[string]string{"redis_version": version}), version)
	}
}
