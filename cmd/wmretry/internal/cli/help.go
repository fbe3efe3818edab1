package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/doctor"
	"github.com/tieredretry/watermill-retry/internal/operate"
)

// helpText has the page of each command: what it does in one line, the text of --help, and examples.
//
//go:embed help.txt
var helpText string

var helpTemplate = template.Must(template.New("help.txt").Parse(helpText))

// helpPage is what help.txt has of one command.
type helpPage struct{ short, long, examples string }

// helpOn returns the pages of help.txt for a backend, by the paths of their commands.
func helpOn(kind *backend.Kind) map[string]helpPage {
	rules := doctor.NamesOn(kind.Name)
	var all strings.Builder
	err := helpTemplate.Execute(&all, struct {
		*backend.Kind
		Rules, FirstRule string
		Overdue          time.Duration
	}{kind, strings.Join(rules, ", "), rules[0], operate.OverdueAfter})
	if err != nil {
		panic(err)
	}
	pages := map[string]helpPage{}
	for _, page := range strings.Split(all.String(), "\n# ")[1:] {
		path, page, _ := strings.Cut(page, "\n")
		page, examples, _ := strings.Cut(page, "\n\nExamples:\n")
		short, long, _ := strings.Cut(page, "\n\n")
		pages[path] = helpPage{strings.TrimSpace(short), strings.TrimSpace(long), strings.TrimRight(examples, "\n")}
	}
	return pages
}

// command returns a command. Its line is its path and its arguments, such as "dead show QUEUE ID": the path names its
// page, and words in capitals are arguments. Those in brackets may be any number.
func (e *env) command(line string, run func(ctx context.Context, args []string) error) *cobra.Command {
	words := strings.Fields(line)
	first := slices.IndexFunc(words, func(word string) bool { return strings.ToLower(word) != word })
	if first < 0 {
		first = len(words)
	}
	c := e.described(strings.Join(words[:first], " "))
	c.Use = strings.Join(words[first-1:], " ")
	c.RunE = func(c *cobra.Command, args []string) error { return run(c.Context(), args) }
	arguments := words[first:]
	switch {
	case len(arguments) == 0:
		c.Args = cobra.NoArgs
	case arguments[0][0] == '[':
		c.Args, c.ValidArgsFunction = cobra.ArbitraryArgs, e.completeQueue
	default:
		c.Args = needs(arguments)
	}
	if len(arguments) > 0 && arguments[0] == e.of() {
		c.ValidArgsFunction = e.completeFirst
	}
	return c
}

// described returns a command that has only its name and its page.
func (e *env) described(path string) *cobra.Command {
	page := e.help[strings.TrimSpace("wmretry "+path)]
	return &cobra.Command{Use: path[strings.LastIndexByte(path, ' ')+1:], Short: page.short, Long: page.long,
		Example: page.examples}
}

// group returns a command that has only subcommands. It refuses other words: cobra prints the help and reports success.
func (e *env) group(path string, commands ...*cobra.Command) *cobra.Command {
	c := e.described(path)
	c.AddCommand(commands...)
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("%s has no command %q", c.CommandPath(), args[0])
		near := c.SuggestionsFor(args[0])
		if len(near) > 0 {
			text += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return errors.New(text)
	}
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// needs returns the check of a command whose arguments have these names.
func needs(names []string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) == len(names) {
			return nil
		}
		return fmt.Errorf("%s needs %s, and has %s", c.CommandPath(), strings.Join(names, " and "),
			plural(len(given), "argument", "arguments"))
	}
}
