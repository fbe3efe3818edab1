package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
)

type editFlags struct {
	history
	force bool
}

func newEditCommand(l *letterCommand) *cobra.Command {
	var f editFlags
	c := l.command(&cobra.Command{
		Use:   "edit",
		Short: "Change the body of one letter in your editor, and redrive it",
		Long: `Opens the body of a letter in $VISUAL or $EDITOR. When the editor ends, the letter is redriven with the
new body, and its history notes the change. Nothing is sent where the body is as before.

JSON without spaces is indented for the editor, and has none again when it is sent. Any other body is given to the
editor as it is. A line feed that the editor adds at the end is removed where the body had none. The letter stays
where it is until the editor ends; a letter that is gone by then is not sent.`,
		Example: `  wmretry dead edit orders 5d9f6b1e-0c53-4d0e-a4cb-6ab61e1b1a30
  EDITOR='sed -i s/EURO/EUR/' wmretry dead edit orders 5d9f6b1e-0c53-4d0e-a4cb-6ab61e1b1a30 --note INC-42`,
		RunE: func(c *cobra.Command, args []string) error { return l.edit(c.Context(), args, f) },
	}, "ID")
	c.Flags().BoolVar(&f.force, "force", false, "send a body that is no valid JSON any more")
	l.addHistory(c, &f.history, "a note for the history, after that of the change")
	return c
}

func (l *letterCommand) edit(ctx context.Context, args []string, f editFlags) error {
	queue, rest := l.queue(args)
	editor, err := l.editor()
	if err != nil {
		return err
	}
	letter, err := l.only(ctx, queue, rest[0])
	if err != nil {
		return err
	}
	before := letter.Payload
	file, remove, err := editFile(before)
	if err != nil {
		return err
	}
	defer func() { remove() }()
	given, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	after, err := l.edited(ctx, editor, file, before, f.force)
	if err != nil {
		if written, readErr := os.ReadFile(file); readErr == nil && !bytes.Equal(written, given) {
			remove = func() {} // of the file: it has the user's work
			err = fmt.Errorf("%w; what you have written is in %s", err, safe(file))
		}
		return err
	}
	if bytes.Equal(before, after) {
		_, _ = fmt.Fprintln(l.stdout, "the body is as before: nothing is sent")
		return nil
	}
	note := fmt.Sprintf("body edited, %d to %d bytes", len(before), len(after))
	if f.note != "" {
		note += ": " + f.note
	}
	err = l.redrive(ctx, args, letters.Redrive{
		Filter: letters.Filter{IDs: []string{letter.ID}}, Limit: 1, To: f.to, By: f.by, Note: note,
		Edit: func(l *letters.Letter) ([]byte, error) {
			if !bytes.Equal(l.Payload, before) {
				return nil, errors.New("the letter has another body than the one that was edited: nothing is sent")
			}
			return after, nil
		},
	}, &filterFlags{ids: rest}, letter.ID)
	if err != nil {
		remove = func() {} // of the file: it has the user's work
		return fmt.Errorf("%w; what you have written is in %s", err, safe(file))
	}
	return nil
}

// only returns the letter with an id: the oldest one of several.
func (l *letterCommand) only(ctx context.Context, queue, id string) (*letters.Letter, error) {
	var found *letters.Letter
	n := 0
	for letter, err := range l.browse(ctx, queue, letters.Filter{IDs: ids([]string{id})}) {
		if err != nil {
			return nil, err
		}
		if n++; n == 1 {
			found = letter
		}
	}
	switch {
	case n == 0:
		return nil, l.noID(queue, id)
	case n > 1:
		_, _ = fmt.Fprintf(l.stderr, "%d letters have this id: the oldest is edited, the others stay\n", n)
	}
	return found, nil
}

// editor returns the user's editor, which a shell runs: it may have arguments.
func (e *env) editor() (string, error) {
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if editor := os.Getenv(name); editor != "" {
			return editor, nil
		}
	}
	for _, editor := range []string{"editor", "nano", "vi"} {
		if _, err := exec.LookPath(editor); err == nil {
			return editor, nil
		}
	}
	return "", usage("there is no editor: set VISUAL or EDITOR, such as EDITOR=nano")
}

// editFile writes the body into a file that only the user can read.
func editFile(body []byte) (name string, remove func(), err error) {
	folder, err := os.MkdirTemp("", "wmretry-") // mode 0700
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(folder) }
	name = filepath.Join(folder, "body.txt")
	if json.Valid(body) {
		name = filepath.Join(folder, "body.json")
	}
	if err := os.WriteFile(name, forEditor(body), 0o600); err != nil {
		remove()
		return "", nil, err
	}
	return name, remove, nil
}

// forEditor indents JSON without spaces.
func forEditor(body []byte) []byte {
	var text bytes.Buffer
	if !isCompact(body) || json.Indent(&text, body, "", "  ") != nil {
		return body
	}
	return text.Bytes()
}

// isCompact reports whether a body is JSON without spaces.
func isCompact(body []byte) bool { return json.Valid(body) && bytes.Equal(compact(body), body) }

func compact(body []byte) []byte {
	var text bytes.Buffer
	if json.Compact(&text, body) != nil {
		return body
	}
	return text.Bytes()
}

// edited runs the editor and returns the new body.
func (e *env) edited(ctx context.Context, editor, file string, before []byte, force bool) ([]byte, error) {
	if !utf8.Valid(before) {
		_, _ = fmt.Fprintln(e.stderr, "the body is not text in UTF-8: an editor for text may change more bytes "+
			"than you do")
	}
	if err := e.runEditor(ctx, editor, file); err != nil {
		return nil, err
	}
	after, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	after = restore(before, after)
	if fault := json.Unmarshal(after, new(any)); json.Valid(before) && fault != nil && !force {
		return nil, fmt.Errorf("the body was JSON and is not any more (%s): nothing is sent; --force sends it",
			safe(fault.Error()))
	}
	return after, nil
}

func (e *env) runEditor(ctx context.Context, editor, file string) error {
	// The shell splits the arguments of the editor. The file is an argument of its own.
	command := exec.CommandContext(context.WithoutCancel(ctx), "sh", "-c", editor+` "$1"`, "sh", file)
	command.Stdin, command.Stdout, command.Stderr = e.stdin, e.stdout, e.stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("the editor %s has failed, and nothing is sent: %w", safe(editor), err)
	}
	return ctx.Err()
}

// restore removes what the editor and forEditor have added to the body.
func restore(before, after []byte) []byte {
	given := forEditor(before)
	if !bytes.HasSuffix(given, []byte("\n")) {
		after = bytes.TrimSuffix(after, []byte("\n"))
	}
	switch {
	case bytes.Equal(after, given):
		return before
	case isCompact(before):
		return compact(after)
	}
	return after
}
