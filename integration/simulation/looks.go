package simulation

import (
	"context"
	"slices"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// manyLooks is more than the deliveries after which RabbitMQ gives a message of a quorum queue up.
const manyLooks = 25

// look looks at the dead letters, as wmretry does. They stay there, in their order.
func (w *world) look(store *deadletter.Store, queue string) {
	var before []string
	for range manyLooks {
		var seen []string
		for letter, err := range store.Browse(context.Background(), queue+".dead", letters.Filter{}) {
			if err != nil {
				w.broker.Note("look: %v", err)
				return
			}
			seen = append(seen, string(letter.Payload))
		}
		gone := func(id string) bool { return !slices.Contains(seen, id) }
		if was := slices.DeleteFunc(before, gone); !slices.Equal(was, seen[:min(len(was), len(seen))]) {
			w.ledger.violated("", "looks change the order of dead letters: %v, and then %v", was, seen)
		}
		before = seen
	}
}
