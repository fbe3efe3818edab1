package connect_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// Each message of a group fails once on each tier of the schedule, and comes back to its own work queue only: also
// where that is a classic queue, which has an inbox, and beside a work queue with tiers of its own.
func TestGroupBringsMessagesBackToTheirOwnQueue(t *testing.T) {
	t.Parallel()
	const messages = 50
	b := testapp.Config(t)
	group := b.Prefix + "_group"
	b.Policy.TierGroup, b.Policy.ExtraTiers = group, b.Policy.Schedule
	s := testapp.Connect(t, b)
	_, err := broker.Channel(t).QueueDeclare(s.Queue("classic"), true, false, false, false, nil)
	require.NoError(t, err)
	queues := []string{"quorum", "classic", "own"}
	succeeded, tries := testapp.NewLedger(), testapp.NewLedger()
	for _, queue := range queues {
		options := retry.Options{}
		if queue == "own" {
			options.Policy = &retry.Policy{Schedule: b.Policy.Schedule}
		}
		s.AddConsumerHandler(s.Router, queue, s.Queue(queue), func(msg *message.Message) error {
			tries.Add(msg.UUID)
			assert.Contains(t, msg.UUID, queue, "a message of another queue")
			if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 2 {
				return errDown
			}
			succeeded.Add(msg.UUID)
			return nil
		}, options)
	}
	s.Run()
	for i := range messages {
		for _, queue := range queues {
			s.Publish(s.Queue(queue), fmt.Sprintf("%s %d", queue, i))
		}
	}
	succeeded.Wait(t, messages*len(queues), soon)
	exists := func(queue string) bool {
		channel := broker.Channel(t)
		_, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err == nil
	}
	assert.True(t, exists(group+"."+b.Prefix+".100ms"))
	for _, queue := range queues {
		assert.Equal(t, queue == "own", exists(s.Queue(queue)+"."+b.Prefix+".100ms"), "%s has tiers of its own", queue)
		assert.Equal(t, queue == "classic", exists(s.Queue(queue)+"."+b.Prefix+".inbox"), "%s has an inbox", queue)
	}
	assert.Empty(t, succeeded.Twice())
	for uuid, count := range tries.Counts() {
		assert.Equal(t, 3, count, uuid)
	}
}
