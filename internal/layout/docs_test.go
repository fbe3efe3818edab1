package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

const root = "../.."

// readmeWords is the maximum length of the README, code and links included. It takes about two minutes to read.
const readmeWords = 1000

// forbidden has words that are hard to read in a second language, and plain words instead of them. Neither documents nor comments
// have them.
var forbidden = map[string]string{
	"nobody":        "no handler, no consumer, no client",
	"somebody":      "a client, an operator",
	"whoever":       "a client that, an app that",
	"guilty":        "the message that caused it",
	"innocent":      "the other messages",
	"a wish":        "a requested delay",
	"says that":     "states that",
	"tells whether": "reports whether",
}

// forbiddenInDocs are for documents only: in comments some are names or plain.
var forbiddenInDocs = map[string]string{
	"never never":  "at least once",
	"in doubt":     "at least once, a duplicate",
	"knows better": "what it does",
	"whole story":  "the failure record",
}

// document is a page: the README, CONTRIBUTING, CHANGELOG, or a page of docs.
type document struct {
	path string // from the root, with slashes
	text string
}

func read(t *testing.T, path string) document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	require.NoError(t, err)
	return document{path, string(text)}
}

// files returns the files of the repository whose paths match: there are some.
func files(t *testing.T, matches func(path string) bool) (all []document) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && entry.Name() == ".broker" {
				return filepath.SkipDir
			}
			return err
		}
		if path, err = filepath.Rel(root, path); err == nil && matches(filepath.ToSlash(path)) {
			all = append(all, read(t, filepath.ToSlash(path)))
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func ofDocs(path string) bool { return strings.HasPrefix(path, "docs/") }

func isModule(path string) bool { return path == "go.mod" || strings.HasSuffix(path, "/go.mod") }

func isTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

// documents returns all files below docs, without the charts and images, and the named files.
func documents(t *testing.T, named ...string) []document {
	t.Helper()
	return files(t, func(path string) bool {
		return ofDocs(path) && filepath.Ext(path) != ".svg" && filepath.Ext(path) != ".png" || slices.Contains(named, path)
	})
}

// sources returns the text of all files whose paths match.
func sources(t *testing.T, matches func(path string) bool) string {
	t.Helper()
	var all strings.Builder
	for _, d := range files(t, matches) {
		all.WriteString(d.text + "\n")
	}
	return all.String()
}

var (
	goBlock    = regexp.MustCompile("(?s)```go\n(.*?)```")
	anyFence   = regexp.MustCompile("(?sm)^```.*?^```\n")
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?)\s*$`)
	// A title may follow the target of a link. Images are links too.
	link         = regexp.MustCompile(`\]\(([^)\s]+)[^)]*\)`)
	pageInText   = regexp.MustCompile(`(docs/[a-z/-]+\.md)#([a-z0-9-]+)`)
	linkText     = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)
	splitTime    = regexp.MustCompile(`\b\d+[hm]\d+(\.\d+)?[ms]`)
	makeCommand  = regexp.MustCompile("`make +([^`\n]+)`")
	makeLine     = regexp.MustCompile(`(?m)^\s*(?:\$ )?make +([^\n]+)$`)
	makeRule     = regexp.MustCompile(`(?m)^([a-z0-9-]+):(?:[^=]|$)`)
	glossaryWord = regexp.MustCompile(`(?m)^- \*\*([^*]+)\*\*: `)
	testName     = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`")
)

// TestDocsCodeCompiles: every Go block of the README and of docs is a part of an Example. The indentation may differ.
func TestDocsCodeCompiles(t *testing.T) {
	t.Parallel()
	examples := unindented(sources(t, func(path string) bool {
		return strings.HasPrefix(filepath.Base(path), "example_") && isTest(path)
	}))
	for _, d := range documents(t, "README.md") {
		for _, block := range goBlock.FindAllStringSubmatch(d.text, -1) {
			code := strings.Replace(strings.TrimPrefix(block[1], "package main\n"), "func main() {", "func Example() {", 1)
			if !strings.Contains(examples, strings.TrimSpace(unindented(code))) {
				t.Errorf("%s: no Example has this code:\n%s", d.path, block[1])
			}
		}
	}
	if !goBlock.MatchString(read(t, "README.md").text) {
		t.Error("the README shows no code")
	}
}

func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	if words := len(strings.Fields(read(t, "README.md").text)); words > readmeWords {
		t.Errorf("the README has %d words, code included: at most %d, the rest belongs in docs", words, readmeWords)
	}
}

// TestDocsCommandsExist: the Makefile has each target by its literal name, so that a reader finds it. The test does not run the
// targets. CI does.
func TestDocsCommandsExist(t *testing.T) {
	t.Parallel()
	var known []string
	for _, rule := range makeRule.FindAllStringSubmatch(read(t, "Makefile").text, -1) {
		known = append(known, rule[1])
	}
	if len(known) == 0 {
		t.Fatal("the Makefile has no targets")
	}
	for _, d := range documents(t, "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		for _, target := range makeTargets(d.text) {
			if !slices.Contains(known, target) {
				t.Errorf("%s has the command `make %s`, which the Makefile does not have", d.path, target)
			}
		}
	}
}

// makeTargets returns the targets of the make commands in a text: between backquotes, or on separate lines in code blocks.
func makeTargets(text string) (targets []string) {
	commands := makeCommand.FindAllStringSubmatch(anyFence.ReplaceAllString(text, ""), -1)
	for _, block := range anyFence.FindAllString(text, -1) {
		commands = append(commands, makeLine.FindAllStringSubmatch(block, -1)...)
	}
	for _, command := range commands {
		for word := range strings.FieldsSeq(command[1]) {
			if strings.ContainsAny(word, "='\"#") { // a variable, or a comment
				break
			}
			if !strings.HasPrefix(word, "-") {
				targets = append(targets, word)
			}
		}
	}
	return targets
}

// TestDocsLinksResolve: each link leads to a file, and an anchor to a heading of that file.
func TestDocsLinksResolve(t *testing.T) {
	t.Parallel()
	for _, d := range documents(t, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/SECURITY.md", ".github/CODE_OF_CONDUCT.md") {
		for _, target := range links(d.text) {
			file, anchor, anchored := strings.Cut(target, "#")
			path := d.path
			if file != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(d.path), filepath.FromSlash(file)))
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(path))); err != nil || strings.HasPrefix(path, "..") {
				t.Errorf("%s links to %s: there is no such file", d.path, target)
				continue
			}
			if anchored && !slices.Contains(anchors(read(t, path).text), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", d.path, target, path)
			}
		}
	}
}

// TestPagesInTextsExist: each page that the code names has the heading, as in an error that is printed.
func TestPagesInTextsExist(t *testing.T) {
	t.Parallel()
	code := sources(t, func(path string) bool {
		return filepath.Ext(path) == ".go" && !isTest(path) || filepath.Base(path) == "findings.txt"
	})
	named := pageInText.FindAllStringSubmatch(code, -1)
	if len(named) < 20 {
		t.Fatalf("%d pages found", len(named))
	}
	for _, match := range named {
		if !slices.Contains(anchors(read(t, match[1]).text), match[2]) {
			t.Errorf("the code names %s, which has no such heading", match[0])
		}
	}
}

// links returns the relative links of a text, anchors included.
func links(text string) (targets []string) {
	text = inlineCode.ReplaceAllString(anyFence.ReplaceAllString(text, ""), "")
	for _, match := range link.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(match[1], "://") && !strings.HasPrefix(match[1], "mailto:") {
			targets = append(targets, match[1])
		}
	}
	return targets
}

// anchors returns the anchors of a text's headings, by GitHub's rule: lower case, no punctuation, hyphens for spaces, and a number
// for a repeated heading.
func anchors(text string) (all []string) {
	seen := map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(anyFence.ReplaceAllString(text, ""), -1) {
		title := linkText.ReplaceAllString(match[1], "$1")
		anchor := strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		seen[anchor]++
		if n := seen[anchor]; n > 1 {
			anchor += "-" + strconv.Itoa(n-1)
		}
		all = append(all, anchor)
	}
	return all
}

// TestDocsPagesAreLinked: links lead from the README to every page, and every chart and image is shown on one.
func TestDocsPagesAreLinked(t *testing.T) {
	t.Parallel()
	reached := map[string]bool{"README.md": true}
	for next := []string{"README.md"}; len(next) > 0; next = next[1:] {
		for _, target := range links(read(t, next[0]).text) {
			file, _, _ := strings.Cut(target, "#")
			path := filepath.ToSlash(filepath.Join(filepath.Dir(next[0]), filepath.FromSlash(file)))
			if file != "" && strings.HasPrefix(path, "docs/") && !reached[path] {
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(path))); err != nil {
					continue // TestDocsLinksResolve reports it
				}
				if reached[path] = true; strings.HasSuffix(path, ".md") {
					next = append(next, path)
				}
			}
		}
	}
	for _, d := range files(t, ofDocs) {
		if !reached[d.path] {
			t.Errorf("%s cannot be reached by links from the README", d.path)
		}
	}
}

func TestDocsArePlain(t *testing.T) {
	t.Parallel()
	for _, d := range documents(t, "README.md", "CONTRIBUTING.md", ".github/SECURITY.md", ".github/CODE_OF_CONDUCT.md") {
		for _, fault := range plainFaults(d.text) {
			t.Errorf("%s: %s", d.path, fault)
		}
	}
}

// plainFaults returns the faults of a document: forbidden words, and durations that are not written as in the names of the queues.
func plainFaults(text string) (faults []string) {
	faults = append(wordFaults(text, forbidden), wordFaults(text, forbiddenInDocs)...)
	for _, duration := range splitTime.FindAllString(text, -1) {
		faults = append(faults, "it has "+duration+": write it with one unit, as the name of the tier queue (125s, not 2m5s)")
	}
	return faults
}

// wordFaults returns a fault for each of the words that is in the text. A line may end within the words.
func wordFaults(text string, words map[string]string) (faults []string) {
	lower := strings.Join(strings.Fields(strings.ToLower(text)), " ")
	for word, plain := range words {
		if regexp.MustCompile(`\b` + word + `\b`).MatchString(lower) {
			faults = append(faults, "it has \""+word+"\": write "+plain)
		}
	}
	return faults
}

// TestDocsHaveTheRecordKeys: operators read the keys of the failure record in the broker's management UI.
func TestDocsHaveTheRecordKeys(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/outcomes.md")
	for _, key := range retry.RecordKeys() {
		if !strings.Contains(page.text, "`"+key+"`") {
			t.Errorf("%s does not have the key %s of the failure record", page.path, key)
		}
	}
}

// TestGlossaryWordsAreUsed: each word is there once, and another page uses it.
func TestGlossaryWordsAreUsed(t *testing.T) {
	t.Parallel()
	var others strings.Builder
	for _, d := range documents(t, "README.md") {
		if d.path != "docs/glossary.md" {
			others.WriteString(strings.ToLower(d.text))
		}
	}
	seen := map[string]bool{}
	for _, row := range glossaryWord.FindAllStringSubmatch(read(t, "docs/glossary.md").text, -1) {
		for word := range strings.SplitSeq(strings.ToLower(row[1]), ", ") {
			if seen[word] {
				t.Errorf("the glossary has %q twice", word)
			}
			seen[word] = true
			if !strings.Contains(others.String(), word) {
				t.Errorf("the glossary has %q, which no other page uses", word)
			}
		}
	}
	if len(seen) == 0 {
		t.Error("the glossary has no words")
	}
}

// TestDocsCiteTestsThatExist: a page cites the tests that check its claims.
func TestDocsCiteTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := sources(t, isTest)
	for _, d := range documents(t, "README.md", "CONTRIBUTING.md", ".github/SECURITY.md") {
		for _, name := range testName.FindAllStringSubmatch(d.text, -1) {
			if !strings.Contains(tests, "\nfunc "+name[1]+"(") {
				t.Errorf("%s cites %s: there is no such test", d.path, name[1])
			}
		}
	}
}
