package model

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Management returns the part of the management API that this library reads. It takes any user and virtual host, its
// figures are those of now, and it ignores which columns are asked for.
func (b *Broker) Management() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, path, _ := strings.Cut(r.URL.EscapedPath(), "/api/")
		parts := strings.Split(path, "/")
		for i := range parts {
			parts[i], _ = url.PathUnescape(parts[i])
		}
		var answer any
		b.locked(func() { answer = b.answer(parts) })
		w.Header()["Date"] = nil // the clock of the server is not that of a bubble
		if answer == nil {
			w.WriteHeader(http.StatusNotFound)
			answer = map[string]any{"error": "Object Not Found", "reason": "Not Found"}
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
}

// answer returns what the API answers to a path, nil if there is no such object.
func (b *Broker) answer(path []string) any {
	switch {
	case b.down:
	case path[0] == "overview":
		return map[string]any{"rabbitmq_version": b.config.Rules.Version, "erlang_version": "27"}
	case path[0] == "whoami":
		return map[string]any{"name": "guest", "tags": []string{"administrator"}}
	case path[0] == "permissions":
		return map[string]any{"configure": ".*", "write": ".*", "read": ".*"}
	case path[0] == "queues" && len(path) == 3:
		if q := b.queues[path[2]]; q != nil {
			return q.details()
		}
	case path[0] == "queues":
		all := []any{}
		for _, name := range sorted(b.queues) {
			all = append(all, b.queues[name].details())
		}
		return all
	case path[0] == "exchanges":
		all := []any{}
		for _, name := range sorted(b.exchanges) {
			e := b.exchanges[name]
			all = append(all, map[string]any{"name": name, "type": e.kind, "durable": e.durable, "auto_delete": e.autoDelete,
				"internal": e.internal, "arguments": e.arguments})
		}
		return all
	case path[0] == "bindings":
		all := []any{}
		for _, name := range sorted(b.queues) {
			all = append(all, binding{target: name, key: name}.details())
		}
		for _, each := range b.bindings {
			all = append(all, each.details())
		}
		return all
	}
	return nil
}

func (b binding) details() any {
	kind := "queue"
	if b.toExchange {
		kind = "exchange"
	}
	return map[string]any{"source": b.source, "destination": b.target, "destination_type": kind, "routing_key": b.key,
		"arguments": maps.Clone(b.arguments)}
}

func (q *queue) details() any {
	policy, p := q.broker.policy(q)
	kind := "classic"
	if q.quorum() {
		kind = "quorum"
	}
	unacknowledged := 0
	for _, c := range q.broker.connections {
		unacknowledged += len(c.unacknowledged(q))
	}
	definition := amqp091.Table{}
	maps.Copy(definition, p.Definition)
	return map[string]any{"name": q.name, "type": kind, "state": "running", "durable": q.durable,
		"auto_delete": q.autoDelete, "exclusive": q.exclusive, "arguments": maps.Clone(q.arguments), "policy": policy,
		"effective_policy_definition": definition, "messages": len(q.ready) + len(q.leaving) + unacknowledged,
		"messages_ready": len(q.ready), "messages_unacknowledged": unacknowledged, "messages_dlx": len(q.leaving),
		"consumers": q.users(), "message_stats": map[string]any{"publish": q.published}}
}
