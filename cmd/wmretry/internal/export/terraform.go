package export

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Terraform writes resources of the provider cyrilgdn/rabbitmq: https://registry.terraform.io/providers/cyrilgdn/rabbitmq/latest/docs.
func Terraform(to io.Writer, t Topology) error {
	all, err := t.merged()
	if err != nil {
		return err
	}
	var s strings.Builder
	s.WriteString(`terraform {
  required_providers {
    rabbitmq = {
      source = "cyrilgdn/rabbitmq"
    }
  }
}
`)
	exchanges, queues, bindings := names{}, names{}, names{}
	for _, e := range all.Exchanges {
		_, _ = fmt.Fprintf(&s, `
resource "rabbitmq_exchange" "%s" {
  name  = %s
  vhost = %s

  settings {
    type        = %s
    durable     = %t
    auto_delete = false
%s  }
}
`, exchanges.of(e.Name), quoted(e.Name), quoted(t.Vhost), quoted(e.Kind), e.Durable, texts(e.Arguments))
	}
	for _, q := range all.Queues {
		_, _ = fmt.Fprintf(&s, `
resource "rabbitmq_queue" "%s" {
  name  = %s
  vhost = %s

  settings {
    durable     = %t
    auto_delete = false
%s  }
}
`, queues.of(q.Name), quoted(q.Name), quoted(t.Vhost), q.Durable, typed(q.Arguments))
	}
	for _, b := range all.Bindings {
		_, _ = fmt.Fprintf(&s, `
resource "rabbitmq_binding" "%s" {
  vhost            = %s
  source           = rabbitmq_exchange.%s.name
  destination      = rabbitmq_queue.%s.name
  destination_type = "queue"
  routing_key      = %s
}
`, bindings.of(b.Exchange+" to "+b.Queue+" "+b.Key), quoted(t.Vhost), exchanges.of(b.Exchange), queues.of(b.Queue), quoted(b.Key))
	}
	_, err = io.WriteString(to, s.String())
	return err
}

// texts returns arguments that are all texts, as the provider has them for exchanges.
func texts(arguments amqp091.Table) string {
	if len(arguments) == 0 {
		return ""
	}
	var s strings.Builder
	s.WriteString("    arguments = {\n")
	for _, key := range slices.Sorted(maps.Keys(arguments)) {
		_, _ = fmt.Fprintf(&s, "      %-*s = %s\n", longest(arguments), quoted(key), quoted(fmt.Sprint(arguments[key])))
	}
	s.WriteString("    }\n")
	return s.String()
}

// typed returns arguments of all types, as the provider has them for queues.
func typed(arguments amqp091.Table) string {
	if len(arguments) == 0 {
		return ""
	}
	var s strings.Builder
	s.WriteString("    arguments_json = jsonencode({\n")
	for _, key := range slices.Sorted(maps.Keys(arguments)) {
		value := fmt.Sprint(arguments[key])
		if text, ok := arguments[key].(string); ok {
			value = quoted(text)
		}
		_, _ = fmt.Fprintf(&s, "      %-*s = %s\n", longest(arguments), quoted(key), value)
	}
	s.WriteString("    })\n")
	return s.String()
}

// longest is the width of the longest name, quoted: terraform fmt aligns the values.
func longest(arguments amqp091.Table) (width int) {
	for key := range arguments {
		width = max(width, len(quoted(key)))
	}
	return width
}

// quoted quotes a text: https://developer.hashicorp.com/terraform/language/expressions/strings.
func quoted(text string) string {
	inner, _ := json.Marshal(text)
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(string(inner))
}

// names gives each object a name that Terraform accepts, and no two the same.
type names map[string]string

func (n names) of(object string) string {
	if name, known := n[object]; known {
		return name
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, object)
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	unique := name
	for i := 2; slices.Contains(slices.Collect(maps.Values(n)), unique); i++ {
		unique = fmt.Sprintf("%s_%d", name, i)
	}
	n[object] = unique
	return unique
}
