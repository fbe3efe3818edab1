package retrytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/letterline"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// Replay calls a handler once with a dead letter, and fails the test while the handler returns an error. It reports in
// words whether that is the error which the letter has recorded, or another one. When the handler returns no error, the
// test passes, and its log says so. Numbers, times and addresses in the texts of errors may differ.
//
// The file has one letter, as letters.GoTest, "wmretry dead show --go-test" and "wmretry dead export" write it. The
// handler gets the message as its last call got it: payload, UUID, metadata, and the failure record without the last
// failure, as far as the letter knows it: reason, type and time are those of the last failure. A header that is no
// string is metadata with its text. The context has the names of the handler and its topic. The app's marshaler and
// policy are not used, so the text of an error that Policy.RedactReason has changed differs.
//
// In a bubble of testing/synctest, time.Now in the handler is the time of the last failure. Replay sets it by a sleep,
// so start nothing before it that ticks. Outside of a bubble it is the time of the host: for handlers that need the
// network. Replay waits for the handler without a limit, so that a debugger can stop in it.
//
// A file that cannot be read, a handler that is nil, and a letter that the app's marshaler could not read, end the
// test. Replay must be called from the test's goroutine.
func Replay[H message.NoPublishHandlerFunc | message.HandlerFunc |
	func(*message.Message) error | func(*message.Message) ([]*message.Message, error)](
	t testing.TB, file string, handler H,
) {
	t.Helper()
	letter, err := readLetter(file)
	if err != nil {
		t.Fatalf("retrytest: cannot replay %s: %v", file, err)
	}
	if letter.Record.DeadReason == retry.DeadReasonUnmarshal {
		t.Fatalf("retrytest: no handler got letter %q, because the app's marshaler could not read it: %q. Test the "+
			"marshaler with the body in %s", letter.ID, letter.Record.Reason, file)
	}
	plain, producing := handlerOf(handler)
	if plain == nil && producing == nil {
		t.Fatalf("retrytest: the handler of letter %q is nil: put the handler that failed into the test", letter.ID)
	}
	if inBubble() {
		time.Sleep(time.Until(letter.Record.LastFailedAt))
	}
	app := NewWithConfig(t, Config{Patience: backoff.MaxDelay, Policy: retry.Policy{
		Schedule: backoff.Schedule{time.Second}, // none of it is used
		Rules: []retry.Rule{{
			If: func(retry.Record, error) bool { return true }, Then: retry.DeadLetter("replayed"),
		}},
	}})
	name, topic := letter.Record.Handler, letter.Record.Topic
	if name == "" {
		name = "handler"
	}
	if topic == "" {
		topic = letter.Queue
	}
	if plain != nil {
		app.AddConsumerHandler(app.Router, name, topic, plain)
	} else {
		app.AddHandler(app.Router, name, topic, topic+".replayed", producing)
	}
	report(t, letter, name, app.Send(topic, lastCall(letter)))
}

// handlerOf returns one of the two kinds of handlers.
func handlerOf(handler any) (message.NoPublishHandlerFunc, message.HandlerFunc) {
	switch h := handler.(type) {
	case message.NoPublishHandlerFunc:
		return h, nil
	case func(*message.Message) error:
		return h, nil
	case message.HandlerFunc:
		return nil, h
	case func(*message.Message) ([]*message.Message, error):
		return nil, h
	}
	return nil, nil
}

// latest is the latest time of a last failure: the clock of a bubble ends in 2262, and the handler may wait.
var latest = time.Date(2200, time.January, 1, 0, 0, 0, 0, time.UTC)

// readLetter reads a file with one letter.
func readLetter(file string) (*letters.Letter, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var line letterline.Line
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	if err := decoder.Decode(&line); err != nil {
		return nil, fmt.Errorf("it has no letter of an export: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it must have one letter, in one line")
	}
	if at := line.Record.LastFailedAt; at.After(latest) {
		return nil, fmt.Errorf("the last failure of its record is at %v: it must be before %v", at, latest)
	}
	letter := &letters.Letter{ID: line.ID, Kind: letters.Kind(line.Kind), Record: line.Record, Payload: line.Body,
		Metadata: message.Metadata{}}
	if letter.Queue, err = letterline.DecodeText("queue", line.Queue); err != nil {
		return nil, err
	}
	for key, value := range line.Headers {
		fields, _ := value.(map[string]any)
		if key, err = letterline.DecodeText("headers", key); err != nil {
			return nil, err
		}
		for tag, value := range fields {
			text, is := value.(string)
			if !is {
				encoded, _ := json.Marshal(value) // it comes from JSON
				text = string(encoded)
			}
			if tag == "S" {
				if text, err = letterline.DecodeText("headers."+key, text); err != nil {
					return nil, err
				}
			}
			letter.Metadata[key] = text
		}
	}
	if uuid, found := letter.Metadata[letterline.UUIDHeader]; found {
		letter.ID = uuid
		delete(letter.Metadata, letterline.UUIDHeader)
	}
	return letter, nil
}

// lastCall returns the message as the last call of the handler got it.
func lastCall(letter *letters.Letter) *message.Message {
	msg := message.NewMessage(letter.ID, letter.Payload)
	msg.Metadata = letter.Metadata
	msg = letters.Fresh(msg)
	record := letter.Record
	record.Failures--
	record.DeadReason, record.LeftOff, record.Subscriber = "", "", ""
	record.DueAt, record.Remaining = time.Time{}, 0
	if record.Failures > 0 || record.Snoozes > 0 {
		record.Failures = max(record.Failures, 0)
		record.Write(msg.Metadata)
	}
	return msg
}

// report compares the failure with the recorded one.
func report(t testing.TB, letter *letters.Letter, handler string, story *Story) {
	t.Helper()
	recorded := letter.Record
	hasRecord := letter.Kind != letters.Broker && letter.Kind != letters.Unknown &&
		recorded.ErrorType+recorded.Reason != ""
	was := "the letter has no error of a handler"
	if hasRecord {
		was = "the recorded error is " + errorText(recorded)
	}
	attempts := story.Attempts()
	err := attempts[len(attempts)-1].Err
	if err == nil {
		if hasRecord {
			was = "the recorded error is gone: " + errorText(recorded)
		}
		t.Logf("retrytest: handler %q takes letter %q without an error; %s", handler, letter.ID, was)
		return
	}
	now := retry.Record{Reason: err.Error()} // of a handler that has settled the message itself
	if dead := story.DeadLetter(); dead != nil {
		now, _ = retry.ReadRecord(dead.Metadata)
	}
	what := errorText(now)
	switch {
	case hasRecord && same(recorded, now):
		t.Errorf("retrytest: handler %q still fails with %s: that is the recorded error of letter %q", handler, what,
			letter.ID)
	case hasRecord:
		t.Errorf("retrytest: handler %q fails with %s: that is another error than the recorded one of letter %q; %s",
			handler, what, letter.ID, was)
	default:
		t.Errorf("retrytest: handler %q fails with %s for letter %q; %s", handler, what, letter.ID, was)
	}
	var panicked *retry.PanicError
	if errors.As(err, &panicked) {
		t.Logf("%s", panicked.Stack)
	}
}

// errorText returns the text of an error in quotes, and its type.
func errorText(record retry.Record) string {
	text := fmt.Sprintf("%q", record.Reason)
	if record.ErrorType != "" {
		text += " (" + strings.Trim(fmt.Sprintf("%q", record.ErrorType), `"`) + ")" // it comes from elsewhere
	}
	return text
}

// same reports whether two errors have the same cause, as letters of one group have it. A letter of Watermill's
// PoisonQueue has no type, and one of an app whose Policy.RedactReason returns none no text.
func same(recorded, now retry.Record) bool {
	if recorded.ErrorType == "" {
		now.ErrorType = ""
	}
	if recorded.Reason == "" {
		now.Reason = ""
	}
	now.DeadReason = recorded.DeadReason
	var groups letters.Groups
	groups.Add(&letters.Letter{Record: recorded})
	groups.Add(&letters.Letter{Record: now})
	return len(groups.Sorted()) == 1
}
