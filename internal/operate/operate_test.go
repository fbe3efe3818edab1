package operate_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/operate"
)

// TestALateAnswerIsNoWrongClock: a server that is slow to answer has the right time.
func TestALateAnswerIsNoWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for server, want := range map[time.Duration]string{
			-6 * time.Second: "its clock is -6s from that of this host", -5 * time.Second: "", 0: "", 10 * time.Second: "",
			25 * time.Second: "", 26 * time.Second: "its clock is 6s from that of this host",
		} {
			var checked operate.Checked
			begun := time.Now()
			time.Sleep(20 * time.Second)
			checked.Clock("Redis", begun, begun.Add(server).Round(0))
			if want == "" {
				assert.Empty(t, checked.Findings, server)
				continue
			}
			assert.Equal(t, "clock Redis "+want, checked.Findings[0].Rule+" "+checked.Findings[0].Subject+" "+checked.Findings[0].What)
		}
	})
}
