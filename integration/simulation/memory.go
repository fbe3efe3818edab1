package simulation

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing/synctest"
	"time"
	"weak"

	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// fewElements is how many elements a list, a map or a channel of a process has at most, when all messages are handled.
	// There are more messages, and more of their failures.
	fewElements = 100
	// remembered is how long a process that keeps an order remembers what went back: docs/order.md has: "For one hour the
	// process remembers how often these messages failed."
	remembered = time.Hour + 10*time.Minute
	// collectEach is of how many seeds one shows that Close leaves nothing: the collector takes a while.
	collectEach = 8
	module      = "github.com/tieredretry/watermill-retry/"
)

// keptField has what a process that keeps an order remembers of messages that went back, and metadataField the many
// values of each of these.
const keptField, metadataField = "ordered.partition.kept", "msgctx.Again.Metadata"

// keysField has what a breaker knows of its keys, and windowField the outcomes of each of them and of the handler.
const keysField, windowField = "middleware.keys.all", "middleware.window.outcomes"

// windowOfTenant is how many outcomes the breaker has of one key at most: five times Least.
const windowOfTenant = 5 * leastOfTenant

// forgets checks that what went back is forgotten after a longer time. Few plans have it, and with wazero, where the
// hour takes 15 s, only those that are replayed.
func (w *world) forgets() {
	if runtime.GOOS == "wasip1" && os.Getenv("SIM_SEED") == "" {
		return
	}
	if w.plan.shape != keepsOrder || w.plan.number("forgets")%16 > 0 {
		return
	}
	time.Sleep(remembered)
	for number := range w.processes { // when a partition goes back, what is old is forgotten
		c := w.running(number).connection
		_ = c.Pause(handlerName)
		time.Sleep(standstill)
		_ = c.Resume(handlerName)
		w.small(number, c, true)
	}
}

// small checks that a process has few elements.
func (w *world) small(number int, c retry.Connection, forgotten bool) {
	if raced { // the fields are read without what guards them
		return
	}
	synctest.Wait() // nothing runs while the fields are read
	counts := map[string]int{}
	sizes(reflect.ValueOf(c), "", map[any]bool{}, counts)
	for field, n := range counts {
		most := fewElements
		if field == windowField {
			most += windowOfTenant * counts[keysField]
		}
		if n > most && field != metadataField {
			w.ledger.violated("", "process %d has %d elements in %s at rest", number, n, field)
		}
	}
	most := len(w.plan.tenants) * len(w.plan.queues())
	shown := func(s retry.SubscriptionHealth) bool { return len(s.Keys) > 0 }
	if n := counts[keysField]; n > most || n == 0 && slices.ContainsFunc(c.Health().Subscriptions, shown) {
		w.ledger.violated("", "process %d has %d elements in %s, and the plan has %d keys", number, n, keysField, most)
	}
	if n, has := counts[keptField]; has != (w.plan.shape == keepsOrder) || forgotten && n > 0 {
		w.ledger.violated("", "process %d has %d elements in %s after %v", number, n, keptField, remembered)
	}
}

// sizes adds how many elements each list, map and channel has that can be reached from a value, by its type and field.
// Elements without a size are none.
func sizes(v reflect.Value, name string, seen map[any]bool, counts map[string]int) {
	switch kind := v.Kind(); kind {
	case reflect.Interface:
		sizes(v.Elem(), name, seen, counts)
	case reflect.Pointer:
		at := [2]any{v.Type(), v.Pointer()}
		if !v.IsNil() && !seen[at] && ours(v.Type().Elem()) {
			seen[at] = true
			sizes(v.Elem(), name, seen, counts)
		}
	case reflect.Struct:
		if t := v.Type(); t.PkgPath() == "sync/atomic" && strings.HasPrefix(t.Name(), "Pointer[") {
			to := t.Field(0).Type.Elem() // it has an array without elements of this type
			sizes(reflect.NewAt(to.Elem(), v.FieldByName("v").UnsafePointer()), name, seen, counts)
		}
		for i := range v.NumField() {
			sizes(v.Field(i), fmt.Sprint(v.Type(), ".", v.Type().Field(i).Name), seen, counts)
		}
	case reflect.Map, reflect.Chan, reflect.Slice, reflect.Array:
		if v.Type().Elem().Size() > 0 || kind == reflect.Map {
			counts[name] += v.Len()
		}
	}
	switch v.Kind() {
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			sizes(each.Value(), name, seen, counts)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			sizes(v.Index(i), name, seen, counts)
		}
	}
}

// ours reports whether what a pointer leads to belongs to the library: not to the client, the app or the broker.
func ours(t reflect.Type) bool {
	path := t.PkgPath()
	app := strings.HasPrefix(path, module+"integration/") || strings.HasSuffix(path, "/rabbitmq/model")
	return strings.HasPrefix(path, module) && !app
}

// weakly returns a pointer to a connection that does not keep it in memory.
func weakly(c retry.Connection) weak.Pointer[byte] {
	return weak.Make((*byte)(reflect.ValueOf(c).UnsafePointer()))
}

func isGone(c weak.Pointer[byte]) bool { return c.Value() == nil }

// collected checks that nothing is left of the connections of a run.
func (r *result) collected(seed uint64) {
	if seed%collectEach != 0 {
		return
	}
	for range 5 { // a pool keeps what it has for two
		runtime.GC()
		if r.connections = slices.DeleteFunc(r.connections, isGone); len(r.connections) == 0 {
			return
		}
	}
	r.violations = append(r.violations, violation{text: "a connection is in memory after Close"})
}
