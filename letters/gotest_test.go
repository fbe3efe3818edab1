package letters_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// filesOf returns the names and the contents of the files of a test.
func filesOf(t *testing.T, test *letters.GoTest) (goName, jsonName string, code, line []byte) {
	t.Helper()
	require.Len(t, test.Files, 2)
	for name, content := range test.Files {
		if strings.HasPrefix(name, "testdata/") {
			jsonName, line = name, content
		} else {
			goName, code = name, content
		}
	}
	return goName, jsonName, code, line
}

const hostile = "\x1b[2J`\"\n*/}\r\x00\u202e\xff../../etc/passwd"

// TestGoTestOfAnyID: every ID makes a file that the compiler reads, in the folder, and different ones for different
// IDs.
func TestGoTestOfAnyID(t *testing.T) {
	t.Parallel()
	names := map[string]string{}
	for _, id := range []string{
		"order-10", "5d9f6b1e-0c53-4d0e-a4cb-6ab61e1b1a30", "order_10", "order.10", "order/10", "../../etc/passwd", "windows", "amd64", "386",
		"a_windows", "-rf", ".", "..", "", "7", "#1234567890abcdef", hostile, strings.Repeat("a/", 100), strings.Repeat("a-", 100), strings.Repeat("é", 100), "linux.5-x",
		"x\n//go:build ignore\n", strings.Repeat("b", 1<<16),
	} {
		letter := failed(id, hostile)
		letter.Metadata = message.Metadata{"quote" + hostile: hostile}
		letter.Payload = []byte(hostile)
		test, err := letter.GoTest(letters.GoTestConfig{Name: "billing"})
		require.NoError(t, err)
		goName, jsonName, code, line := filesOf(t, test)
		assert.Regexp(t, `^billing_[A-Za-z0-9-]{1,60}_test\.go$`, goName)
		assert.Regexp(t, `^testdata/[A-Za-z0-9][A-Za-z0-9-]{0,60}\.json$`, jsonName)
		assert.Empty(t, names[goName], "%q and %q", id, names[goName])
		names[goName] = id
		formatted, err := format.Source(code)
		require.NoError(t, err, string(code))
		assert.Equal(t, string(formatted), string(code))
		assert.NotContains(t, string(code)+string(line), "\x1b")
		assert.Equal(t, 1, bytes.Count(line, []byte("\n")))
		parsed, err := parser.ParseFile(token.NewFileSet(), "", code, parser.ParseComments)
		require.NoError(t, err)
		assert.NotNil(t, parsed.Scope.Lookup(test.Name))
		assert.LessOrEqual(t, len(test.Name), 128, "it is a note of a redrive")
		assert.True(t, ast.IsExported(test.Name))

		folder := t.TempDir()
		require.NoError(t, test.Write(folder, false))
		for _, system := range []string{"linux", "windows"} { // no name is a constraint
			match, err := (&build.Context{GOOS: system, GOARCH: "arm64", Compiler: "gc"}).MatchFile(folder, goName)
			require.NoError(t, err)
			assert.True(t, match, "%s on %s", goName, system)
		}
	}
	assert.Equal(t, "order-10", names["billing_order-10_test.go"][:8])
}

func TestGoTestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"billing": {"TestBilling_order_10", "billing"}, "Billing EU": {"TestBilling_EU_order_10", "billing_eu"},
		"func": {"TestFunc_order_10", "letters"}, "2nd": {"Test2nd_order_10", "letters"}, "a/b": {"TestA_b_order_10", "a_b"},
		"_billing": {"TestBilling_order_10", "billing"}, ".é billing_": {"TestBilling__order_10", "billing_"},
	} {
		test, err := failed("order-10", "x").GoTest(letters.GoTestConfig{Name: name})
		require.NoError(t, err)
		file, _, code, _ := filesOf(t, test)
		assert.Regexp(t, `^[A-Za-z0-9]`, file, "go ignores files that begin with _")
		assert.Equal(t, want[0], test.Name)
		assert.Contains(t, string(code), "package "+want[1]+"\n")
	}
	for _, wrong := range []letters.GoTestConfig{
		{}, {Name: "💥"}, {Name: strings.Repeat("a", 61)}, {Name: "a", Package: "a b"}, {Name: "a", Package: "_"}, {Name: "a", Redact: []string{""}},
		{Name: "a", Redact: []string{" email"}},
	} {
		_, err := failed("order-10", "x").GoTest(wrong)
		assert.ErrorContains(t, err, "GoTestConfig.", "%+v", wrong)
	}
	err := letters.GoTestConfig{Package: "?", Redact: []string{""}}.Validate()
	for _, part := range []string{"Name", "Package", "Redact[0]"} {
		assert.ErrorContains(t, err, part)
	}
}

// TestRedactedValuesAreNowhere: no file has a value that a rule selects, wherever the letter has it, too.
func TestRedactedValuesAreNowhere(t *testing.T) {
	t.Parallel()
	secrets := []string{"bob@example.com", "4111111111111111", "Bobby <b>", "0171-555", "10 Downing", "s3cr3t", "corr-77", "nested-secret"}
	letter := &letters.Letter{
		ID: "order-of-bob@example.com", Queue: "orders.dead", Kind: letters.Library,
		Payload: []byte(` {"id": 7, "Email":"bob@example.com","card":4111111111111111,"big":123456789012345678901234567890,
			"customer":{"name":"Bobby <b>","phone":["0171-555",true,null,1],"address":{"street":"10 Downing"}},
			"name":"kept","note":"call bob@example.com","bob@example.com":1,"list":[{"email":"x\u00e9@example.com"}], "email":1}`),
		Metadata: message.Metadata{"token": "s3cr3t", "tenant": "acme", "copy": "of bob@example.com"},
		Headers: map[string]any{
			"session": map[string]any{"token": "nested-secret", "n": int32(1)}, "list": []any{map[string]any{"token": "nested-secret"}, "s3cr3t"},
			"pin": map[string]any{"a": "0171-555"},
		},
		Properties: map[string]string{
			"correlation_id": "corr-77", "priority": "4", "timestamp": "2026-05-04T12:00:00Z", "delivery_mode": "2", "expiration": "1",
			"exchange": "e", "routing_key": "k", "reply_to": "to corr-77",
		},
		Redriven: letters.Redriven{}.Add(letters.PastRedrive{By: "bob@example.com", Note: "bob@example.com", Reason: "no account of bob@example.com"}),
		Record: retry.Record{
			Failures: 1, Reason: `card 4111111111111111 of "bob@example.com" declined`, ErrorType: "*errors.errorString", DeadReason: "permanent", LeftOff: "s3cr3t",
			LastFailedAt: time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC),
		},
	}
	rules := []string{"email", "card", "customer.name", "CUSTOMER.phone", "customer.address", "token", "pin", "correlation_id", "absent"}
	test, err := letter.GoTest(letters.GoTestConfig{Name: "billing", Redact: rules})
	require.NoError(t, err)
	_, _, code, line := filesOf(t, test)
	var read struct {
		ID, Text   string
		Record     retry.Record
		Body       []byte
		Properties map[string]any
		Headers    map[string]map[string]any
	}
	require.NoError(t, json.Unmarshal(line, &read))
	all := fmt.Sprint(test.Files, string(code), string(line), string(read.Body), test.Name)
	for _, secret := range append(secrets, "xé@example.com") {
		assert.NotContains(t, all, secret)
		assert.NotContains(t, all, strconv.QuoteToASCII(secret))
	}
	assert.Equal(t, `{"id":7,"Email":"redacted","card":0,"big":123456789012345678901234567890,"customer":{"name":"redacted",`+
		`"phone":["redacted",false,null,0],"address":{"street":"redacted"}},"name":"kept","note":"call redacted","redacted":1,"list":[{"email":"redacted"}],"email":0}`, string(read.Body))
	assert.Equal(t, string(read.Body), read.Text)
	assert.Equal(t, `card 0 of "redacted" declined`, read.Record.Reason)
	assert.Equal(t, "order-of-redacted", read.ID)
	assert.Equal(t, "acme", read.Headers["tenant"]["S"])
	assert.Equal(t, map[string]any{"S": "redacted"}, read.Headers["pin"])
	assert.Equal(t, map[string]any{
		"correlation_id": "redacted", "priority": 4.0, "timestamp": 1777896000.0, "delivery_mode": 2.0, "reply_to": "to redacted",
	}, read.Properties)
	assert.Equal(t, []string{"card", "correlation_id", "customer.address", "customer.name", "customer.phone", "email", "pin", "token"}, test.Redacted)
	assert.Equal(t, "s3cr3t", letter.Metadata["token"], "the letter itself stays as it is")
	assert.Equal(t, "bob@example.com", letter.Redriven.Redrives[0].By)
}

// TestOnlyJSONIsRedacted: a payload in which no field can be found is refused, or left out.
func TestOnlyJSONIsRedacted(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"bob@example.com", `"bob"`, "4111", "\x00\xff", `{"email":"bob"`, `{"email":"bob"} bob`, "[1]]", strings.Repeat("[", 5000) + strings.Repeat("]", 5000)} {
		letter := failed("order-10", "x")
		letter.Payload = []byte(payload)
		_, err := letter.GoTest(letters.GoTestConfig{Name: "billing", Redact: []string{"email"}})
		assert.ErrorContains(t, err, "DropPayload", "%.20s", payload)
		assert.NotContains(t, err.Error(), "bob")
		test, err := letter.GoTest(letters.GoTestConfig{Name: "billing", Redact: []string{"email"}, DropPayload: true})
		require.NoError(t, err)
		_, _, _, line := filesOf(t, test)
		assert.Contains(t, string(line), `"body":""`)
		assert.NotContains(t, string(line), "bob")
		_, err = letter.GoTest(letters.GoTestConfig{Name: "billing"})
		assert.NoError(t, err, "without rules the payload is as it is")
	}
	letter := failed("order-10", `no account of bob@example.com, card 4111111111111111`)
	letter.Payload = []byte(`{"email":"bob@example.com","card":4111111111111111}`)
	letter.Metadata = message.Metadata{"copy": "of bob@example.com"}
	for _, drop := range []bool{false, true} {
		test, err := letter.GoTest(letters.GoTestConfig{Name: "billing", Redact: []string{"email", "card"}, DropPayload: drop})
		require.NoError(t, err)
		_, _, _, line := filesOf(t, test)
		assert.Contains(t, string(line), "no account of redacted, card 0")
		assert.NotContains(t, string(line), "bob@example.com")
		assert.Equal(t, drop, strings.Contains(string(line), `"body":""`))
		assert.Equal(t, []string{"card", "email"}, test.Redacted)
	}
	empty, err := failed("order-10", "x").GoTest(letters.GoTestConfig{Name: "billing", Redact: []string{"email"}})
	require.NoError(t, err)
	assert.Empty(t, empty.Redacted)
}

// TestWriteKeepsWhatIsThere: a file that is there stays, and no other is left.
func TestWriteKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	test, err := failed("order-10", "x").GoTest(letters.GoTestConfig{Name: "billing"})
	require.NoError(t, err)
	goName, jsonName, code, _ := filesOf(t, test)
	for _, there := range []string{goName, jsonName} {
		folder := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(folder, "testdata"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(folder, there), []byte("mine"), 0o600))
		assert.ErrorIs(t, test.Write(folder, false), fs.ErrExist)
		content, err := os.ReadFile(filepath.Join(folder, there))
		require.NoError(t, err)
		assert.Equal(t, "mine", string(content))
		for _, other := range []string{goName, jsonName} {
			if other != there {
				assert.NoFileExists(t, filepath.Join(folder, other))
			}
		}
		require.NoError(t, test.Write(folder, true))
		content, err = os.ReadFile(filepath.Join(folder, goName))
		require.NoError(t, err)
		assert.Equal(t, string(code), string(content))
		info, err := os.Stat(filepath.Join(folder, jsonName))
		require.NoError(t, err)
		assert.Zero(t, info.Mode().Perm()&0o077, "letters have personal data")
	}
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "testdata"), nil, 0o600))
	assert.Error(t, test.Write(folder, true), "testdata is a file")
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "a", jsonName), 0o755))
	assert.Error(t, test.Write(filepath.Join(folder, "a"), true), "a folder has the name")
}

// TestOverwriteReplacesTheFile: what is there is neither kept, nor followed, nor written in part.
func TestOverwriteReplacesTheFile(t *testing.T) {
	t.Parallel()
	test, err := failed("order-10", "x").GoTest(letters.GoTestConfig{Name: "billing"})
	require.NoError(t, err)
	goName, jsonName, code, line := filesOf(t, test)
	content := map[string]string{goName: string(code), jsonName: string(line)}
	for _, name := range []string{goName, jsonName} {
		folder := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(folder, "testdata"), 0o755))
		path, victim := filepath.Join(folder, name), filepath.Join(t.TempDir(), "victim")
		require.NoError(t, os.WriteFile(path, []byte("an old file"), 0o600))
		require.NoError(t, os.Chmod(path, 0o666))
		second := filepath.Join(folder, "second")
		require.NoError(t, os.Link(path, second))
		reader, err := os.Open(path)
		require.NoError(t, err)
		require.NoError(t, test.Write(folder, true))
		info, err := os.Lstat(path)
		require.NoError(t, err)
		if runtime.GOOS != "windows" {
			assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), name)
		}
		text, err := os.ReadFile(second) // another name of the old file
		require.NoError(t, err)
		assert.Equal(t, "an old file", string(text), "the new one is another file")
		text, err = io.ReadAll(reader)
		require.NoError(t, err)
		require.NoError(t, reader.Close())
		assert.Equal(t, "an old file", string(text), "who reads the old file sees no half of the new one")

		require.NoError(t, os.WriteFile(victim, []byte("mine"), 0o600))
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Symlink(victim, path))
		assert.ErrorIs(t, test.Write(folder, false), fs.ErrExist)
		require.NoError(t, test.Write(folder, true))
		text, err = os.ReadFile(victim)
		require.NoError(t, err)
		assert.Equal(t, "mine", string(text), "the link was followed")
		text, err = os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, content[name], string(text))

		// The second file cannot be put in its place: nothing else is left, and no temporary file.
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.MkdirAll(filepath.Join(path, "full"), 0o755))
		assert.Error(t, test.Write(folder, true))
		for _, at := range []string{folder, filepath.Join(folder, "testdata")} {
			entries, err := os.ReadDir(at)
			require.NoError(t, err)
			for _, entry := range entries {
				assert.False(t, strings.HasPrefix(entry.Name(), "."), entry.Name())
			}
		}
	}
	for _, overwrite := range []bool{false, true} {
		folder, other := t.TempDir(), t.TempDir()
		require.NoError(t, os.Symlink(other, filepath.Join(folder, "testdata")))
		assert.Error(t, test.Write(folder, overwrite), "testdata leads to another folder")
		entries, err := os.ReadDir(other)
		require.NoError(t, err)
		assert.Empty(t, entries)
		require.NoError(t, os.Mkdir(filepath.Join(folder, "within"), 0o755))
		require.NoError(t, os.Remove(filepath.Join(folder, "testdata")))
		require.NoError(t, os.Symlink("within", filepath.Join(folder, "testdata")))
		assert.ErrorContains(t, test.Write(folder, overwrite), "testdata is no folder")
	}
}

// fill sets every text that a pointer leads to, but a kind, which is one of a few.
func fill(value reflect.Value, text string) {
	switch value.Kind() {
	case reflect.String:
		if value.Type() != reflect.TypeFor[letters.Kind]() {
			value.SetString(text)
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				fill(value.Field(i), text)
			}
		}
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			return // the payload
		}
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0), text)
	}
}

// written returns all that the files of a test have, with what is in base64 there.
func written(t *testing.T, l *letters.Letter, name string, rules ...string) string {
	t.Helper()
	test, err := l.GoTest(letters.GoTestConfig{Name: name, Redact: rules})
	require.NoError(t, err)
	goName, jsonName, code, line := filesOf(t, test)
	var read struct{ Body []byte }
	require.NoError(t, json.Unmarshal(line, &read))
	all := strings.Join([]string{goName, jsonName, string(code), string(line), string(read.Body), test.Name}, "\n")
	for _, encoded := range regexp.MustCompile(`[A-Za-z0-9+/]{8,}={0,2}`).FindAllString(all, -1) {
		if decoded, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			all += "\n" + string(decoded)
		}
	}
	return all
}

// TestARedactedValueIsInNoField: every field of a letter, the names and the types of headers, and the names of the files.
func TestARedactedValueIsInNoField(t *testing.T) {
	t.Parallel()
	const secret, text = "alice@example.com", "of-alice@example.com-7"
	letter := &letters.Letter{Kind: letters.Library}
	fill(reflect.ValueOf(letter).Elem(), text)
	letter.Redriven.Times = 1
	letter.Payload = []byte(`{"email":"` + secret + `","card":4111111111,"` + text + `":"` + text + `","pan":4111111111,"text":"4111111111","float":4.111111111e9}`)
	letter.Metadata = message.Metadata{text: text, "user-" + text + "\xff": text + "\xff", "base64:x" + text: "base64:x" + text}
	letter.Headers = map[string]any{
		"x-" + text: int32(1), "bytes": []byte(text + "\xff"), "table": map[string]any{text: map[string]any{text: text}}, "array": []any{text, []any{[]byte(text)}},
		"int64": int64(4111111111), "uint32": uint32(4111111111), "float": 4111111111.0, "arrayed": []any{int64(4111111111)},
		"decimal": struct {
			Scale uint8
			Value int32
		}{2, 1234567},
	}
	letter.Properties = map[string]string{"correlation_id": text, text: text}
	all := written(t, letter, "billing "+text, "email", "card")
	for _, leak := range []string{secret, "alice", "4111111111", "4.111111111e+09"} {
		assert.NotContains(t, all, leak)
	}
	assert.Contains(t, all, "of-redacted-7")
	for _, name := range []string{"bytes", "table", "array", "int64", "uint32", "float", "arrayed", "decimal"} {
		assert.Contains(t, all, `"`+name+`":`, "the others stay")
	}
	assert.Contains(t, all, "1234567")
}

// TestRedactedHeadersOfEveryType: a value that a rule selects in a header is replaced elsewhere, whatever its type.
func TestRedactedHeadersOfEveryType(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{
		"bob@example.com": []byte("bob@example.com"), "bob@example.com\xff": "bob@example.com\xff", "12345678": int32(12345678), "-12345678": int64(-12345678),
		"12345": int16(12345), "54321": uint16(54321), "87654321": uint32(87654321), "12345.5": float32(12345.5), "1.23456789e+08": 123456789.0, "123456789": 123456789.0,
		"nested-secret": map[string]any{"a": []any{"nested-secret"}}, "1777896000": time.Unix(1777896000, 0), "7654321": struct {
			Scale uint8
			Value int32
		}{2, 7654321},
	} {
		letter := failed("order-10", "no customer "+name+" there")
		letter.Headers = map[string]any{"Secret": value}
		all := written(t, letter, "billing", "secret")
		assert.NotContains(t, all, strings.TrimSuffix(name, "\xff"))
		assert.Regexp(t, `"reason":"no customer (redacted|0|-0) there"`, all)
	}
}

// TestRedactedValuesInOtherSpellings: the spellings in which an error of an app has a value of its message.
func TestRedactedValuesInOtherSpellings(t *testing.T) {
	t.Parallel()
	const secret = `Ann "Zoë" <ann+b@Example.com>/?`
	html, err := json.Marshal(secret)
	require.NoError(t, err)
	inner := func(quoted string) string { return quoted[1 : len(quoted)-1] }
	base := func(before string) string {
		return base64.StdEncoding.EncodeToString([]byte(before + secret + " and more"))
	}
	for name, spelling := range map[string]string{
		"plain": secret, "upper case": strings.ToUpper(secret), "lower case": strings.ToLower(secret), "query": url.QueryEscape(secret),
		"query in lower case": strings.ToLower(url.QueryEscape(secret)), "path": url.PathEscape(secret), "JSON": inner(string(html)), "Go": inner(strconv.Quote(secret)),
		"ASCII": inner(strconv.QuoteToASCII(secret)), "JSON in upper case": strings.ToUpper(inner(strconv.QuoteToASCII(secret))),
		"base64": base64.StdEncoding.EncodeToString([]byte(secret)), "base64 in a URL": base64.RawURLEncoding.EncodeToString([]byte(secret)),
	} {
		letter := failed("order-10", "is ["+spelling+"] known?")
		letter.Payload = []byte(`{"who":` + string(html) + `}`)
		var read struct{ Record retry.Record }
		test, err := letter.GoTest(letters.GoTestConfig{Name: "billing", Redact: []string{"who"}})
		require.NoError(t, err)
		_, _, _, line := filesOf(t, test)
		require.NoError(t, json.Unmarshal(line, &read))
		assert.Equal(t, "is [redacted] known?", read.Record.Reason, name)
	}
	for _, before := range []string{"u:", "us:", "use:", "user:"} {
		letter := failed("order-10", "Authorization: Basic "+base(before))
		letter.Payload = []byte(`{"who":` + string(html) + `}`)
		all := written(t, letter, "billing", "who")
		assert.NotContains(t, all, base(before)[8:36], "within base64, after %q", before)
	}
	letter := failed("order-10", "card 4.111111111111e+12, or %d4111111111111")
	letter.Payload = []byte(`{"card":4111111111111,"cardholder":"x"}`)
	assert.NotContains(t, written(t, letter, "billing", "card"), "111111")
}
