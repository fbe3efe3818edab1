package relay

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// settled has a message handled whose produced messages are published, or not.
func (u *unproduced) settled(uuid string, published bool) {
	msg, own := message.NewMessage(uuid, nil), &msgctx.Delivery{Context: context.Background()}
	call := u.begin(msg, own)
	own.Returned(nil)
	if published {
		msg.Ack()
	} else {
		msg.Nack()
	}
	u.end(call)
}

func TestMessagesThatAreRememberedAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unproduced{calls: 1}
		for i := range 3 * maxUnproduced {
			u.settled(fmt.Sprint(i), false)
			assert.Equal(t, min(i+1, maxUnproduced), len(u.by))
		}
		time.Sleep(pauseAfter(0) + pauses.Longest)
		u.settled("in time", false)
		assert.Len(t, u.by, maxUnproduced, "the others may come back")
		time.Sleep(time.Nanosecond)
		u.settled("later", false)
		assert.Len(t, u.by, 2, "the others have not come back")
	})
}

func TestMessageThatHasSucceededIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unproduced{calls: 1}
		for range 3 * maxUnproduced {
			u.settled("1", false)
			u.settled("1", true)
			assert.Empty(t, u.by)
		}
		u.settled("1", false)
		for i := range maxUnproduced - 1 {
			u.settled(fmt.Sprint("other ", i), false)
		}
		assert.Contains(t, u.by, "1", "there is room for all")
	})
}
