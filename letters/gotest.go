package letters

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/letterline"
)

const (
	maxTestName = 60 // bytes of GoTestConfig.Name, and of an ID in the name of a file
	maxShownID  = 80 // bytes of an ID in the comment of a test
)

// GoTestConfig configures Letter.GoTest.
type GoTestConfig struct {
	// Name begins the names of the test and of its file, such as that of the handler. Of other characters than ASCII
	// letters and digits the names have "_". Required, at most 60 bytes.
	Name string

	// Package is the package of the test. The default is Name in lower case.
	Package string

	// Redact are the names of fields of the payload, at any depth, and of metadata, headers and properties, such as
	// "email", and the paths of fields, such as "customer.email". Upper and lower case are the same, and an array is
	// no part of a path. Values of the payload become "redacted", 0 and false, at any depth, so that their types stay,
	// and all others "redacted". Replaced texts of at least 3 bytes, and numbers of at least 5, are replaced where
	// they occur in all else of the letter, too: in its texts, bytes, numbers and names, such as its ID, the reason, the
	// queue and the name of a header, and in Name. They are found in upper and lower case, escaped for a URL, JSON or
	// Go, and in base64, but not in other forms, such as a hash, hex or parts: SECURITY.md has the list. JSON within
	// a text is a text. A payload that is not a JSON object or array is an error, unless DropPayload is set. The
	// default is none.
	Redact []string

	// DropPayload leaves the payload out. Values of it that Redact selects are replaced elsewhere, where it is JSON.
	DropPayload bool
}

// Validate reports all faults of the configuration.
func (c GoTestConfig) Validate() error {
	all := []error{
		faults.If(strings.Trim(goName(c.Name), "_") == "",
			"Name is %q: it must have an ASCII letter or digit, such as the name of the handler", c.Name),
		faults.If(len(c.Name) > maxTestName, "Name has %d bytes: it must have at most %d", len(c.Name), maxTestName),
		faults.If(c.Package != "" && (!token.IsIdentifier(c.Package) || c.Package == "_"),
			"Package is %q: it must be the name of a Go package", c.Package),
	}
	for i, rule := range c.Redact {
		all = append(all, faults.If(rule == "" || rule != strings.TrimSpace(rule),
			"Redact[%d] is %q: it must be a name or a path, without spaces around it", i, rule))
	}
	return errors.Join(all...)
}

// A GoTest is a test that calls a handler with a letter.
type GoTest struct {
	// Name is that of the test function.
	Name string
	// Files are the test and the letter in testdata, by their paths with slashes.
	Files map[string][]byte
	// Redacted are the rules of GoTestConfig.Redact that have replaced a value, in lower case and sorted.
	Redacted []string
}

// GoTest returns a test that calls a handler with the letter: its file calls retrytest.Replay, and a comment says where
// the handler goes. The file of the letter has one line, as those of an export on RabbitMQ. What is not ASCII letters,
// digits and hyphens in the ID, is a hyphen in the names of the files, which then end with a hash; so do those of an ID
// of one word, which Go could take for a system.
func (l *Letter) GoTest(config GoTestConfig) (*GoTest, error) {
	if err := config.Validate(); err != nil {
		return nil, faults.In("GoTestConfig", err)
	}
	redaction := letterline.NewRedaction(config.Redact)
	line, err := l.line(redaction, config)
	var written []byte
	if err == nil {
		written, err = line.Append(nil)
	}
	if err != nil {
		return nil, fmt.Errorf("letter %q cannot be a test: %w", cut(l.ID, maxShownID), err)
	}
	base := fileName(line.ID)
	name := strings.TrimLeft(goName(redaction.Hide(config.Name)), "_") // go ignores files that begin with "_"
	file := "testdata/" + base + ".json"
	function := "Test" + strings.ToUpper(name[:1]) + name[1:] + "_" + goName(base)
	pkg := strings.ToLower(name)
	if !token.IsIdentifier(pkg) {
		pkg = "letters"
	}
	files := map[string][]byte{
		file: written,
		name + "_" + base + "_test.go": fmt.Appendf(nil, testFile, cmp.Or(config.Package, pkg), function,
			strconv.QuoteToASCII(cut(line.ID, maxShownID)), strconv.Quote(file)),
	}
	return &GoTest{Name: function, Files: files, Redacted: redaction.Used()}, nil
}

// testFile is the format of the file of a test: its package, its name, the ID of the letter and the file of the letter.
//
//go:embed gotest.txt
var testFile string

// line returns the letter as a line of an export. The expiration is left out: with it, a queue would drop a letter that
// is imported.
func (l *Letter) line(redaction *letterline.Redaction, config GoTestConfig) (letterline.Line, error) {
	line := letterline.Line{Kind: string(l.Kind), Body: l.Payload}
	others, err := letterline.Table(l.Headers)
	if err != nil {
		return line, err
	}
	line.Headers, _ = letterline.Table(l.Metadata) // each text can be written
	maps.Copy(line.Headers, others)
	properties, _ := letterline.Table(l.Properties)
	for _, name := range []string{"exchange", "routing_key", "expiration"} {
		delete(properties, name)
	}
	redaction.Table(line.Headers)
	redaction.Table(properties)
	if len(config.Redact) > 0 { // a payload that is left out has the values to hide elsewhere
		if line.Body, err = redaction.JSON(line.Body); err == nil {
			line.Body, err = redaction.HideJSON(line.Body)
		}
		if err != nil && !config.DropPayload {
			return line, fmt.Errorf("its payload cannot be redacted, because %w; set GoTestConfig.DropPayload "+
				"(wmretry: --drop-payload) to leave it out", err)
		}
	}
	if config.DropPayload {
		line.Body = nil
	}
	line.Headers = redaction.HideTable(line.Headers)
	line.Properties = plainProperties(redaction.HideTable(properties))
	line.ID, line.Target, line.Record = redaction.Hide(l.ID), redaction.Hide(l.Target), l.Record
	redaction.HideTexts(&line.Record)
	line.Queue = letterline.EncodeText(redaction.Hide(l.Queue))
	line.RoutingKey = line.Queue
	l.addOwn(&line, redaction)
	return line, nil
}

// plainProperties returns properties as a line has them.
func plainProperties(texts map[string]any) map[string]any {
	properties := map[string]any{}
	for name, value := range texts {
		text, _ := value.(map[string]any)["S"].(string)
		properties[name] = text
		switch name {
		case "priority", "delivery_mode":
			properties[name], _ = strconv.Atoi(text)
		case "timestamp":
			if at, err := time.Parse(time.RFC3339, text); err == nil {
				properties[name] = at.Unix()
			} else {
				delete(properties, name)
			}
		}
	}
	return properties
}

// addOwn adds the headers of the library: the UUID, the failure record and the history of redrives.
func (l *Letter) addOwn(line *letterline.Line, redaction *letterline.Redaction) {
	own := message.Metadata{}
	if l.Kind != Unknown {
		line.Record.Write(own)
	}
	if l.Redriven.Times > 0 {
		history := l.Redriven
		history.Redrives = slices.Clone(history.Redrives)
		redaction.HideTexts(&history)
		history.Write(own)
	}
	if !strings.HasPrefix(line.ID, "#") && l.Properties["message_id"] != l.ID {
		own[letterline.UUIDHeader] = line.ID
	}
	encoded, _ := letterline.Table(own)
	maps.Copy(line.Headers, encoded)
}

// Write writes the files into a folder, readable only by you. A file that is there is an error that fs.ErrExist
// matches, and nothing is written then, unless overwrite is set. Each file is written under a name of its own and
// renamed, so that there is never half a file. A link that has the name of a file is replaced, not followed; a link in
// the place of testdata is an error.
func (g *GoTest) Write(folder string, overwrite bool) (err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	var made []string
	defer func() {
		for _, path := range made {
			err = errors.Join(err, root.RemoveAll(path)) // also where it was renamed
		}
		err = errors.Join(err, root.Close())
	}()
	create := func(path string, content []byte) error {
		file, err := root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		made = append(made, path)
		_, err = file.Write(content)
		return errors.Join(err, file.Sync(), file.Close())
	}
	names := slices.Sorted(maps.Keys(g.Files))
	temporary := map[string]string{}
	for _, name := range names {
		at, base := filepath.Split(filepath.FromSlash(name))
		if err := makeFolder(root, at); err != nil {
			return err
		}
		if !overwrite { // takes the name
			if err := create(filepath.FromSlash(name), nil); err != nil {
				return err
			}
		}
		temporary[name] = at + "." + base + "." + rand.Text() // go ignores it
		if err := create(temporary[name], g.Files[name]); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := root.Rename(temporary[name], filepath.FromSlash(name)); err != nil {
			return err
		}
	}
	made = nil // they stay
	return nil
}

// makeFolder makes a folder within another one. A link could lead to the folder of another program.
func makeFolder(root *os.Root, path string) error {
	if path = filepath.Clean(path); path == "." {
		return nil
	}
	if err := root.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(path); err != nil || info.IsDir() {
		return err
	}
	return fmt.Errorf("%s is no folder: put one in the place of the link", filepath.Join(root.Name(), path))
}

// goName returns a text as a part of the name of a test.
func goName(text string) string { return unsafeInGo.ReplaceAllString(text, "_") }

var (
	unsafeInGo   = regexp.MustCompile(`[^A-Za-z0-9]`)
	unsafeInFile = regexp.MustCompile(`[^A-Za-z0-9-]`)
	// Such a word at the end of the name of a file can be a GOOS or GOARCH: the test would be built only there.
	constraint = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9]{0,14}|386)$`)
)

// fileName returns an ID as a part of the name of a file. Different IDs have different names.
func fileName(id string) string {
	safe := unsafeInFile.ReplaceAllString(id, "-")
	if safe == id && len(id) <= maxTestName && strings.Trim(id, "-") == id && id != "" && !constraint.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%s-%x", cmp.Or(strings.Trim(cut(safe, maxTestName/2), "-"), "letter"), sum[:4])
}

// cut returns the first bytes of a text.
func cut(text string, bytes int) string { return text[:min(len(text), bytes)] }
