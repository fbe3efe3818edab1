package export

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/drift"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// odd is the name of a work queue with what means something in Terraform, a shell, JSON or a diagram.
const odd = "o\"d'd ${x} %{y} #ü\\<b>\n"

func shop() Topology {
	wanted := func(queue, group string) drift.Wanted {
		return drift.Wanted{
			Topology: topology.Config{
				Prefix: "retry", Schedule: backoff.Schedule{time.Second, time.Minute}, TierGroup: group, DeadLetters: topology.Retention{MaxLength: 5, MaxAge: time.Hour},
			},
			Queue: topology.Queue{Name: queue, Durable: true, Arguments: amqp091.Table{"x-single-active-consumer": true}},
		}
	}
	return Topology{Vhost: `v"1`, Wanted: []drift.Wanted{wanted("orders", ""), wanted("orders-1", ""), wanted("orders_1", ""), wanted(odd, ""), wanted("mails", "slow")}}
}

func TestTerraformParses(t *testing.T) {
	var text strings.Builder
	require.NoError(t, Terraform(&text, shop()))
	file, diagnostics := hclparse.NewParser().ParseHCL([]byte(text.String()), "retries.tf")
	require.False(t, diagnostics.HasErrors(), "%v\n%s", diagnostics, text.String())
	all, err := shop().merged()
	require.NoError(t, err)
	arguments := map[string]amqp091.Table{}
	for _, q := range all.Queues {
		arguments[q.Name] = q.Arguments
	}
	value := func(body *hclsyntax.Body, name string) cty.Value {
		v, diagnostics := body.Attributes[name].Expr.Value(&hcl.EvalContext{Functions: map[string]function.Function{"jsonencode": stdlib.JSONEncodeFunc}})
		require.False(t, diagnostics.HasErrors(), "%v", diagnostics)
		return v
	}
	count, seen := map[string]int{}, map[string]bool{}
	for _, block := range file.Body.(*hclsyntax.Body).Blocks {
		if block.Type != "resource" {
			continue
		}
		kind := block.Labels[0]
		count[kind]++
		assert.Regexp(t, `^[A-Za-z_][A-Za-z0-9_]*$`, block.Labels[1])
		assert.False(t, seen[strings.Join(block.Labels, " ")], "%v twice", block.Labels)
		seen[strings.Join(block.Labels, " ")] = true
		assert.Equal(t, `v"1`, value(block.Body, "vhost").AsString())
		if kind != "rabbitmq_queue" {
			continue
		}
		name := value(block.Body, "name").AsString()
		want, known := arguments[name]
		require.True(t, known, "a queue %q", name)
		var have map[string]any
		require.NoError(t, json.Unmarshal([]byte(value(block.Body.Blocks[0].Body, "arguments_json").AsString()), &have))
		wanted, err := json.Marshal(want)
		require.NoError(t, err)
		got, err := json.Marshal(have)
		require.NoError(t, err)
		assert.JSONEq(t, string(wanted), string(got), name)
	}
	assert.Equal(t, map[string]int{"rabbitmq_exchange": len(all.Exchanges), "rabbitmq_queue": len(all.Queues), "rabbitmq_binding": len(all.Bindings)}, count)
}

// diagramLine is the part of Mermaid's syntax that the diagram uses: https://mermaid.js.org/syntax/flowchart.html.
var diagramLine = regexp.MustCompile(`^  (x\d+\{\{L\}\}|q\d+\[L\]|q\d+\[\[L\]\]|x\d+ (-- L )?--> q\d+|[xq]\d+ -\. L \.-> x\d+)$`)

func TestMermaid(t *testing.T) {
	var text strings.Builder
	require.NoError(t, Mermaid(&text, shop()))
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	assert.Equal(t, "flowchart LR", lines[0])
	quoted := regexp.MustCompile(`"[^"<>\\&]*"`)
	nodes := map[string]bool{}
	for _, line := range lines[1:] {
		assert.Regexp(t, diagramLine, quoted.ReplaceAllString(line, "L"), line)
		words := regexp.MustCompile(`\b[xq]\d+\b`).FindAllString(quoted.ReplaceAllString(line, "L"), -1)
		if len(words) == 1 {
			nodes[words[0]] = true
			continue
		}
		for _, word := range words {
			assert.True(t, nodes[word], "%s is used before it is defined: %s", word, line)
		}
	}
	assert.Contains(t, text.String(), `"after 1m"`)
}

func TestPolicies(t *testing.T) {
	var text strings.Builder
	require.NoError(t, Policies(&text, shop()))
	var have struct {
		Policies []struct {
			Name, Pattern string
			Definition    map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text.String()), &have))
	require.Len(t, have.Policies, 10)
	for _, p := range have.Policies {
		_, err := regexp.Compile(p.Pattern)
		assert.NoError(t, err)
	}
	assert.Equal(t, map[string]any{"dead-letter-exchange": "retry", "dead-letter-routing-key": "dead.orders"}, have.Policies[0].Definition)
	assert.Equal(t, map[string]any{"max-length": 5.0, "message-ttl": 3600000.0}, have.Policies[1].Definition)
}

func TestRolesMatchTheirObjects(t *testing.T) {
	app := regexp.MustCompile(shop().Roles()[0].Configure)
	all, err := shop().merged()
	require.NoError(t, err)
	for _, q := range all.Queues {
		if !strings.Contains(q.Name, "\n") { // in RabbitMQ's regular expressions . does not match a line feed either
			assert.Regexp(t, app, q.Name)
		}
	}
	for _, e := range all.Exchanges {
		assert.Regexp(t, app, e.Name)
	}
	for _, other := range []string{"invoices", "orders2", "orders.other", "retry2", "amq.default", "xorders.dead"} {
		assert.NotRegexp(t, app, other)
	}
}

func TestFaultsAreReported(t *testing.T) {
	bad := shop()
	bad.Wanted[1].Queue.Name = "orders.dead"
	for _, write := range []func(*strings.Builder) error{
		func(s *strings.Builder) error { return Definitions(s, bad) }, func(s *strings.Builder) error { return Policies(s, bad) },
		func(s *strings.Builder) error { return Permissions(s, bad) }, func(s *strings.Builder) error { return Mermaid(s, bad) },
		func(s *strings.Builder) error { return Terraform(s, bad) },
	} {
		var text strings.Builder
		assert.Error(t, write(&text))
		assert.Empty(t, text.String())
	}
}
