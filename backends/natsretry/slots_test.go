package natsretry

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A subject is used again when the message on it must be gone, so that they do not grow with the number of retries.
func TestSubjectsAreUsedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots("retry")
		waiting := map[string]time.Time{}
		for i := range 1000 {
			delay := time.Duration(i%10+1) * time.Second
			subject := s.take()
			assert.False(t, time.Now().Before(waiting[subject]), "a message waits on %s", subject)
			waiting[subject] = time.Now().Add(delay)
			s.put(subject, delay)
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(t, s.made, 10*(10+2)+1)
		assert.NotContains(t, waiting, s.fresh())
	})
}
