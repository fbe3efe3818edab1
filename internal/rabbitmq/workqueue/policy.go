package workqueue

import (
	"encoding/json"
	"regexp"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/shell"
)

// PolicyCommand returns the command that protects a queue whose arguments cannot be changed.
func PolicyCommand(vhost, queue string, prefix naming.Prefix, quorum bool) string {
	definition := map[string]any{
		"dead-letter-exchange": prefix.RetryExchange(), "dead-letter-routing-key": naming.DeadKey(queue),
	}
	if quorum {
		definition["delivery-limit"] = queuearg.WorkDeliveryLimit
	}
	return SetPolicy(vhost, "retry of "+queue, queue, definition)
}

// SetPolicy returns the command that sets a policy of one queue. The values of its definition are numbers and texts.
func SetPolicy(vhost, name, queue string, definition map[string]any) string {
	text, _ := json.Marshal(definition)
	return "rabbitmqctl set_policy -p " + shell.Quote(vhost) + " --apply-to queues " + shell.Quote(name) + " " +
		shell.Quote("^"+regexp.QuoteMeta(queue)+"$") + " " + shell.Quote(string(text))
}

// Command is a command of wmretry for the objects of a prefix.
func Command(prefix naming.Prefix, words ...string) string {
	if prefix != naming.Default {
		words = append(words, "--prefix", string(prefix))
	}
	command := "wmretry"
	for _, word := range words {
		command += " " + shell.Word(word)
	}
	return command
}
