package publisher

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/unpublished"
)

// What is at the bound is accepted.
func TestInspectRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	deep := amqp091.Table{}
	deep["self"] = deep
	var loop []any
	loop = append(loop, nil)
	loop[0] = loop
	l := limits{user: "alice", frameMax: 131072}
	for name, test := range map[string]struct {
		publishing amqp091.Publishing
		words      []string
	}{
		"content-type":        {amqp091.Publishing{ContentType: long}, []string{"content-type", "256", "255"}},
		"content-encoding":    {amqp091.Publishing{ContentEncoding: long}, []string{"content-encoding", "255"}},
		"correlation-id":      {amqp091.Publishing{CorrelationId: long}, []string{"correlation-id", "255"}},
		"reply-to":            {amqp091.Publishing{ReplyTo: long}, []string{"reply-to", "255"}},
		"long expiration":     {amqp091.Publishing{Expiration: strings.Repeat("0", 256)}, []string{"expiration", "255"}},
		"message-id":          {amqp091.Publishing{MessageId: long}, []string{"message-id", "255"}},
		"type":                {amqp091.Publishing{Type: long}, []string{"type", "255"}},
		"app-id":              {amqp091.Publishing{AppId: long}, []string{"app-id", "255"}},
		"user-id":             {amqp091.Publishing{UserId: "mallory"}, []string{"user-id", "mallory", "alice"}},
		"direct reply-to":     {amqp091.Publishing{ReplyTo: "amq.rabbitmq.reply-to"}, []string{"reply-to", "amq.rabbitmq.reply-to"}},
		"expiration":          {amqp091.Publishing{Expiration: "10s"}, []string{"expiration", "10s", "315360000000"}},
		"negative expiration": {amqp091.Publishing{Expiration: "-1"}, []string{"expiration", "-1"}},
		"signed expiration":   {amqp091.Publishing{Expiration: "+1"}, []string{"expiration", "+1"}},
		"fraction":            {amqp091.Publishing{Expiration: "1.5"}, []string{"expiration", "1.5"}},
		"endless expiration":  {amqp091.Publishing{Expiration: "315360000001"}, []string{"expiration", "315360000001"}},
		"header key":          {amqp091.Publishing{Headers: amqp091.Table{long: ""}}, []string{"key", "255"}},
		"nested key":          {headers("a", amqp091.Table{long: ""}), []string{"key", `"a"`, "255"}},
		"CC":                  {headers("CC", "queue"), []string{`"CC"`, "string", "array"}},
		"CC of numbers":       {headers("CC", []any{"a", int32(1)}), []string{`"CC[1]"`, "int32"}},
		"CC of strings":       {headers("CC", []string{"a"}), []string{`"CC"`, "[]string"}},
		"BCC":                 {headers("BCC", nil), []string{`"BCC"`}},
		"BCC too long":        {headers("BCC", []any{long}), []string{`"BCC[0]"`, "255"}},
		"NaN":                 {headers("n", math.NaN()), []string{`"n"`, "NaN"}},
		"infinity":            {headers("n", math.Inf(-1)), []string{`"n"`, "-Inf"}},
		"small infinity":      {headers("n", float32(math.Inf(1))), []string{`"n"`, "+Inf"}},
		"nested NaN":          {headers("a", amqp091.Table{"b": []any{"", amqp091.Table{"c": math.NaN()}}}), []string{`"a.b[1].c"`}},
		"int of 33 bits":      {headers("n", math.MaxInt32+1), []string{`"n"`, "2147483648", "int64"}},
		"negative int":        {headers("n", math.MinInt32-1), []string{`"n"`, "-2147483649"}},
		"unsigned":            {headers("n", uint64(1)), []string{`"n"`, "uint64"}},
		"struct":              {headers("n", struct{}{}), []string{`"n"`, "struct"}},
		"pointer":             {headers("n", new(string)), []string{`"n"`, "*string"}},
		"plain map":           {headers("n", map[string]any{}), []string{`"n"`, "map"}},
		"nested too deep":     {headers("a", nestedTables(33)), []string{"a.b.b", "32"}},
		"arrays too deep":     {headers("a", nestedArrays(33)), []string{"a[0][0]", "32"}},
		"long array":          {headers("a", make([]any, 8193)), []string{`"a"`, "8193", "8192"}},
		"large table":         {headers("a", tableOf(8193)), []string{`"a"`, "8193", "8192"}},
		"many headers":        {amqp091.Publishing{Headers: tableOf(8193)}, []string{"8193 headers", "8192"}},
		"table in itself":     {amqp091.Publishing{Headers: deep}, []string{"self.self", "32"}},
		"array in itself":     {headers("a", loop), []string{"[0][0]", "32"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := inspect(&test.publishing, l)
			require.Error(t, err)
			for _, word := range test.words {
				assert.Contains(t, err.Error(), word)
			}
			assert.Less(t, len(err.Error()), 1000)
		})
	}
	most := strings.Repeat("x", 255)
	for name, p := range map[string]amqp091.Publishing{
		"nothing":         {},
		"own user":        {UserId: "alice"},
		"expire at once":  {Expiration: "0"},
		"ten years":       {Expiration: "315360000000"},
		"longest strings": {MessageId: most, AppId: most, Headers: amqp091.Table{most: most}},
		"routes":          {Headers: amqp091.Table{"CC": []any{"a", most}, "BCC": []any{}}},
		"deepest":         {Headers: amqp091.Table{"tables": nestedTables(32), "arrays": nestedArrays(32)}},
		"longest":         {Headers: amqp091.Table{"array": make([]any, 8192), "table": tableOf(8192)}},
		"most headers":    {Headers: tableOf(8192)},
		"ints":            {Headers: amqp091.Table{"most": math.MaxInt32, "least": math.MinInt32}},
	} {
		t.Run(name, func(t *testing.T) {
			size, err := inspect(&p, l)
			require.NoError(t, err)
			assert.Zero(t, l.excess(size))
		})
	}
	_, err := inspect(&amqp091.Publishing{UserId: "anybody"}, limits{})
	require.NoError(t, err, "with external authentication the user is not known")
}

func nestedTables(levels int) amqp091.Table {
	table := amqp091.Table{}
	for range levels - 1 {
		table = amqp091.Table{"b": table}
	}
	return table
}

func nestedArrays(levels int) []any {
	array := []any{}
	for range levels - 1 {
		array = []any{array}
	}
	return array
}

func tableOf(keys int) amqp091.Table {
	table := amqp091.Table{}
	for i := range keys {
		table[strconv.Itoa(i)] = nil
	}
	return table
}

func headers(key string, value any) amqp091.Publishing {
	return amqp091.Publishing{Headers: amqp091.Table{key: value}}
}

// TestInspectMeasures compares the size with what amqp091-go writes.
func TestInspectMeasures(t *testing.T) {
	t.Parallel()
	b := serveConfirms(t)
	connection, err := amqp091.Dial("amqp://" + b.Address)
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)

	everything := amqp091.Table{
		"string": "väl", "bytes": []byte{1, 2, 3}, "nil": nil, "true": true, "byte": byte(1), "int8": int8(-1), "int16": int16(1),
		"uint16": uint16(1), "int32": int32(1), "uint32": uint32(1), "int64": int64(1), "int": 1, "float32": float32(1),
		"float64": 1.0, "decimal": amqp091.Decimal{Scale: 2, Value: 1}, "time": time.Unix(1, 0), "empty": amqp091.Table{},
	}
	for name, p := range map[string]amqp091.Publishing{
		"nothing":    {},
		"headers":    {Headers: everything},
		"no headers": {Headers: amqp091.Table{}},
		"nested":     {Headers: amqp091.Table{"table": everything, "array": []any{everything, []any{"a", nil, int64(2)}}}},
		"properties": {
			ContentType: "a", ContentEncoding: "bc", DeliveryMode: 2, Priority: 3, CorrelationId: "def", ReplyTo: "g",
			Expiration: "10", MessageId: "hi", Timestamp: time.Unix(5, 0), Type: "j", UserId: "k", AppId: "lm",
			Headers: everything,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p.Body = []byte("body")
			require.NoError(t, channel.Publish("exchange", "key", true, false, p))
			length := len(b.next().Header) + frameOverhead
			size, err := inspect(&p, limits{frameMax: length})
			require.NoError(t, err)
			assert.Equal(t, length, size)
			assert.Zero(t, limits{frameMax: length}.excess(size), "it just fits")
			assert.Equal(t, 1, limits{frameMax: length - 1}.excess(size))
			assert.Zero(t, limits{}.excess(size), "no bound")
		})
	}
}

// fitted is a message with this many bytes free in the frame, with its mark. Then it has been made smaller by at most
// as many bytes as shrinkable.
func fitted(t *testing.T, room Room, frameMax, free, shrinkable int) (excess int, r *request, err error) {
	t.Helper()
	m := Message{Room: room, Publishing: amqp091.Publishing{DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{
		"shrinkable": strings.Repeat("x", shrinkable), "filler": "", IDHeader: "12345678",
	}}}
	base, err := inspect(&m.Publishing, limits{})
	require.NoError(t, err)
	m.Publishing.Headers["filler"] = strings.Repeat("x", frameMax-free-base)
	l := limits{frameMax: frameMax}
	excess = m.excess(l)
	m.Publishing.Headers["shrinkable"] = strings.Repeat("x", max(shrinkable-excess, 0))
	r = &request{publishing: m.Publishing}
	return excess, r, newConnection(Config{}, nil).fit(r, room, l)
}

// A message that leaves no room for the broker's headers is refused.
func TestRoomIsLeftForTheBrokersHeaders(t *testing.T) {
	t.Parallel()
	const frameMax, room = 8192, 600
	for _, row := range []struct {
		name             string
		free, shrinkable int
		excess           int
		refused          bool
	}{
		{"with room", room, 0, 0, false},
		{"fits, without room", 100, 1000, room - 100, false},
		{"too large", -100, 1000, room + 100, false},
		{"too large for good", -100, room + 99 - markSize, room + 100, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			excess, _, err := fitted(t, Room{Bytes: room}, frameMax, row.free, row.shrinkable)
			assert.Equal(t, row.excess, excess)
			var tooLarge *unpublished.TooLargeError
			assert.Equal(t, row.refused, errors.As(err, &tooLarge), "%v", err)
		})
	}
}

// A message leaves the spare room, but it is not refused without it.
func TestSpareRoomIsLeftWhereThereIsSome(t *testing.T) {
	t.Parallel()
	const frameMax, spare = 8192, 52
	for _, row := range []struct {
		name       string
		free       int // in the frame, with the mark
		shrinkable int // bytes
		excess     int
		left       int // in the frame
	}{
		{"enough", spare, 0, 0, spare},
		{"shrunk", spare - 10, 100, 10, spare},
		{"without the mark", spare - markSize, 0, markSize, spare},
		{"less, without the mark", 10, 5, spare - 10, 10 + 5 + markSize},
		{"none", -markSize, 0, spare + markSize, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			excess, r, err := fitted(t, Room{Spare: spare}, frameMax, row.free, row.shrinkable)
			require.NoError(t, err)
			assert.Equal(t, row.excess, excess)
			size, err := inspect(&r.publishing, limits{})
			require.NoError(t, err)
			assert.Equal(t, row.left, frameMax-size)
			_, marked := r.publishing.Headers[IDHeader]
			assert.Equal(t, r.id != "", marked)
		})
	}
}

// One header more than a consumer reads closes its connection. So there is room for those that the broker adds, and for
// the mark if possible.
func TestThousandsOfHeadersLeaveRoom(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		headers, room   int
		marked, refused bool
	}{
		{maxElements - 1, 0, true, false},
		{maxElements, 0, false, false},
		{maxElements + 1, 0, false, true},
		{maxElements - 3, 2, true, false},
		{maxElements - 2, 2, false, false},
		{maxElements - 1, 2, false, true},
	} {
		m := Message{Room: Room{Headers: row.room}, Publishing: amqp091.Publishing{Headers: tableOf(row.headers)}}
		assert.Equal(t, !row.marked, m.excess(limits{}) == math.MaxInt, "%+v", row)
		r := &request{publishing: m.Publishing}
		err := newConnection(Config{}, nil).fit(r, m.Room, limits{})
		var tooLarge *unpublished.TooLargeError
		assert.Equal(t, row.refused, errors.As(err, &tooLarge), "%+v", row)
		assert.Equal(t, row.marked, r.id != "", "%+v", row)
	}
}
