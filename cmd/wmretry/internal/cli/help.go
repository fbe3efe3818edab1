package cli

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/doctor"
	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/retry"
)

// helpText has the page of each command: what it does in one line, the text of --help, examples, and the text of each
// flag. The first page also has the flags of several commands.
//
//go:embed help.txt
var helpText string

var helpTemplate = template.Must(template.New("help.txt").Parse(helpText))

// helpPage is what help.txt has of one command.
type helpPage struct {
	short, long, examples string
	flags                 map[string]string // the texts of flags, by their names
}

// helpOn returns the pages of help.txt for a backend, by the paths of their commands.
func helpOn(kind *backend.Kind) map[string]helpPage {
	rules := doctor.NamesOn(kind.Name)
	var all strings.Builder
	err := helpTemplate.Execute(&all, struct {
		*backend.Kind
		Rules, FirstRule, Schedule string
		Overdue                    time.Duration
	}{kind, strings.Join(rules, ", "), rules[0], scheduleHelp, operate.OverdueAfter})
	if err != nil {
		panic(err)
	}
	pages := map[string]helpPage{}
	for _, page := range strings.Split(all.String(), "\n# ")[1:] {
		path, page, _ := strings.Cut(page, "\n")
		page, flags, _ := strings.Cut(page, "\n\nFlags:")
		page, examples, _ := strings.Cut(page, "\n\nExamples:\n")
		short, long, _ := strings.Cut(page, "\n\n")
		of := helpPage{strings.TrimSpace(short), strings.TrimSpace(long), strings.TrimRight(examples, "\n"),
			map[string]string{}}
		for _, flag := range strings.Split(flags, "\n  --")[1:] {
			name, text, _ := strings.Cut(flag, " ")
			of.flags[name] = strings.Join(strings.Fields(text), " ")
		}
		pages[path] = of
	}
	return pages
}

// command returns a command. Its line is its path and its arguments, such as "dead show QUEUE ID": the path names its
// page, and words in capitals are arguments. Those in brackets may be any number.
func (e *env) command(
	line string, flags variables, run func(ctx context.Context, args []string) error,
) *cobra.Command {
	words := strings.Fields(line)
	first := slices.IndexFunc(words, func(word string) bool { return strings.ToLower(word) != word })
	if first < 0 {
		first = len(words)
	}
	c := e.described(strings.Join(words[:first], " "))
	flags.addTo(c.Flags())
	c.Use = strings.Join(words[first-1:], " ")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := notEmpty(c.Flags()); err != nil {
			return err
		}
		return run(c.Context(), args)
	}
	arguments := words[first:]
	switch {
	case len(arguments) == 0:
		c.Args = cobra.NoArgs
	case arguments[0][0] == '[':
		c.Args, c.ValidArgsFunction = cobra.ArbitraryArgs, e.completeQueue
	default:
		c.Args = func(c *cobra.Command, given []string) error {
			if len(given) == len(arguments) {
				return nil
			}
			return fmt.Errorf("%s needs %s, and has %s", c.CommandPath(), strings.Join(arguments, " and "),
				plural(len(given), "argument", "arguments"))
		}
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
		return e.unknown(c, args[0])
	}
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// secrets is what an address can have that is not for a log: a token, a password, parameters.
var secrets = regexp.MustCompile(`(://)\S*[@?]\S*`)

// unknown is the error of a word that is no command of c. It has the whole command that may be meant.
func (e *env) unknown(c *cobra.Command, word string) error {
	text := fmt.Sprintf("%s has no command %q", c.CommandPath(), word)
	near := c.SuggestionsFor(word)
	for _, below := range c.Commands() {
		for _, meant := range below.Commands() {
			if meant.Name() == word {
				near = append(near, below.Name()+" "+word)
			}
		}
	}
	words := append([]string{"wmretry"}, each.Of(e.args, func(word string) string {
		return shellWord(secrets.ReplaceAllString(word, "$1..."))
	})...)
	for i, meant := range near {
		words[slices.Index(e.args, word)+1] = meant
		near[i] = "`" + strings.Join(words, " ") + "`"
	}
	return errors.New(text + only(len(near) > 0, "; did you mean "+strings.Join(near, " or ")+"?"))
}

// kinds are what the values of flags must be, by their types.
var kinds = map[string]string{
	"int":         fmt.Sprintf("a whole number from 0 to %d", math.MaxInt),
	"bool":        "true or false",
	"duration":    "a duration, such as 90s, 10m, 36h or 2d",
	"stringSlice": "a list with commas between its values",
}

// wrongFlag is the error of a flag that cannot be read. An unknown one can belong to the command that is meant.
func (e *env) wrongFlag(c *cobra.Command, err error) error {
	var wrong *pflag.InvalidValueError
	words := c.Flags().Args()
	switch {
	case errors.As(err, &wrong):
		flag := wrong.GetFlag()
		return usage("--%s is %q: it must be %s", flag.Name, wrong.GetValue(), kinds[flag.Value.Type()])
	case c.HasSubCommands() && len(words) > 0:
		return e.unknown(c, words[0])
	}
	return err
}

// variables are those of flags, by the names of the flags: "yes,y" is --yes with the letter y. Their values are the
// defaults. The text of each flag is in help.txt.
type variables map[string]any

// list is the variable of a flag that takes several values, separated by commas.
type list []string

func (all variables) addTo(flags *pflag.FlagSet) {
	for name, variable := range all {
		name, letter, _ := strings.Cut(name, ",")
		switch v := variable.(type) {
		case *bool:
			flags.BoolVarP(v, name, letter, *v, "")
		case *int:
			flags.IntVarP(v, name, letter, *v, "")
		case *string:
			flags.StringVarP(v, name, letter, *v, "")
		case *[]string:
			flags.StringArrayVarP(v, name, letter, *v, "")
		case *list:
			flags.StringSliceVarP((*[]string)(v), name, letter, *v, "")
		case *time.Duration:
			flags.VarP((*duration)(v), name, letter, "")
		case pflag.Value:
			flags.VarP(v, name, letter, "")
		default:
			panic(fmt.Sprintf("the flag %s has a variable of the type %T", name, v))
		}
	}
}

// read reads the texts of the flags that have a reader, in the order of their names, and returns all faults.
func (all variables) read() (err error) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if r, is := all[name].(*reader); is {
			for _, text := range r.texts {
				err = errors.Join(err, r.read(text))
			}
		}
	}
	return err
}

// notEmpty refuses flags without a text. Without its filter a command is about all letters, and without its file
// --export keeps none.
func notEmpty(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		r, read := f.Value.(*reader)
		if read && slices.Contains(r.texts, "") || !read && f.Value.Type() == "string" && f.Value.String() == "" {
			err = errors.Join(err, usage("--%s is empty: leave it out, or give it a value. If it is a variable of the shell, "+
				"that is not set", f.Name))
		}
	})
	return err
}

// reader is the variable of a flag whose texts a function reads, once all arguments are known: a fault in one of them
// does not hide the help, or that another one is missing.
type reader struct {
	kind  string // the kind of its values, as the help names it
	read  func(text string) error
	texts []string // given
}

// several is the kind of a flag whose values are all read. Of another one it is the last.
const several = "stringArray"

// reads returns a reader that sets a variable.
func reads[T any](to *T, read func(text string) (T, error)) *reader {
	return &reader{kind: "string", read: func(text string) (err error) {
		*to, err = read(text)
		return err
	}}
}

// Set implements pflag.Value.
func (r *reader) Set(text string) error {
	if r.kind != several {
		r.texts = nil
	}
	r.texts = append(r.texts, text)
	return nil
}

// String implements pflag.Value.
func (r *reader) String() string { return "" }

// Type implements pflag.Value.
func (r *reader) Type() string { return r.kind }

// describeFlags gives the flags of a command and of those below it their texts, and what a shell completes after them.
func (e *env) describeFlags(c *cobra.Command) {
	reasons := each.Of(retry.DeadReasons(), func(reason retry.DeadReason) string { return string(reason) })
	pem := cobra.FixedCompletions([]string{"pem", "crt", "key"}, cobra.ShellCompDirectiveFilterFileExt)
	lines := cobra.FixedCompletions([]string{"jsonl"}, cobra.ShellCompDirectiveFilterFileExt)
	completions := map[string]cobra.CompletionFunc{
		"dead-reason": cobra.FixedCompletions(reasons, cobra.ShellCompDirectiveNoFileComp),
		"ignore":      cobra.FixedCompletions(doctor.NamesOn(e.kind.Name), cobra.ShellCompDirectiveNoFileComp),
		"ca-file":     pem, "cert-file": pem, "key-file": pem, "export": lines, "output": lines,
		"file": cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	describe := func(f *pflag.Flag) {
		f.Usage = cmp.Or(e.help[c.CommandPath()].flags[f.Name], e.help["wmretry"].flags[f.Name])
		if complete := completions[f.Name]; complete != nil {
			_ = c.RegisterFlagCompletionFunc(f.Name, complete)
		}
	}
	c.Flags().VisitAll(describe)
	c.PersistentFlags().VisitAll(describe)
	for _, below := range c.Commands() {
		e.describeFlags(below)
	}
}
