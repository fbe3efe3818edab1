package cli

import (
	"errors"
	"maps"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
)

// filterFlags are the flags that select letters.
type filterFlags struct {
	ids, metadata []string
	key           string

	selected letters.Filter // what the flags select
}

// with returns these flags and those of one command.
func (f *filterFlags) with(own variables) variables {
	all := variables{
		"id": &f.ids, "reason": reads(&f.selected.Reason, expression), "error-type": &f.selected.ErrorType,
		"cause": &f.selected.Cause, "dead-reason": &f.selected.DeadReason, "handler": &f.selected.Handler, "key": &f.key,
		"older-than": reads(&f.selected.OlderThan, age("--older-than")),
		"newer-than": reads(&f.selected.NewerThan, age("--newer-than")), "meta": &f.metadata,
	}
	maps.Copy(all, own)
	return all
}

// selects reports whether a filter leaves any letter out.
func selects(filter letters.Filter) bool { return !reflect.ValueOf(filter).IsZero() }

func (f *filterFlags) filter() (letters.Filter, error) {
	filter := f.selected
	if slices.Contains(f.ids, "") { // alone it would select all letters
		return filter, usage("--id is empty: it selects no letter. If it is a variable of the shell, that is not set")
	}
	filter.IDs = ids(f.ids)
	pairs := slices.Clone(f.metadata)
	if f.key != "" {
		pairs = append(pairs, recordkey.Key+"="+f.key)
	}
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return filter, usage("--meta %q: it must be key=value", pair)
		}
		if before, twice := filter.Metadata[key]; twice && before != value {
			return filter, usage("--meta names %q twice with different values: no letter has both", key)
		}
		if filter.Metadata == nil {
			filter.Metadata = map[string]string{}
		}
		filter.Metadata[key] = value
	}
	return filter, ofFlags(filter.Validate())
}

var (
	field = regexp.MustCompile(`\b(Redrive|Discard|Filter)\.(\w+)`)
	camel = regexp.MustCompile(`([a-z])([A-Z])`)
)

// ofFlags returns the error of options with the names of their flags in place of their fields.
func ofFlags(err error) error {
	if err == nil {
		return nil
	}
	return usage("%s", field.ReplaceAllStringFunc(err.Error(), func(name string) string {
		_, name, _ = strings.Cut(name, ".")
		return "--" + strings.ToLower(camel.ReplaceAllString(name, "$1-$2"))
	}))
}

// ids also takes ids in the form in which they are printed, with control characters escaped.
func ids(given []string) []string {
	var all []string
	for _, id := range given {
		all = append(all, id)
		if unquoted, err := strconv.Unquote(`"` + strings.ReplaceAll(id, `"`, `\"`) + `"`); err == nil &&
			unquoted != id {
			all = append(all, unquoted)
		}
	}
	return all
}

// expression reads the regular expression of --reason.
func expression(given string) (*regexp.Regexp, error) {
	compiled, err := regexp.Compile(given)
	var fault *syntax.Error
	if errors.As(err, &fault) {
		err = usage("--reason is no regular expression: %s at %q; put a backslash before a character that is meant "+
			"literally (syntax: https://golang.org/s/re2syntax)", fault.Code, fault.Expr)
	}
	return compiled, err
}

// age returns the function that reads the duration of a flag, also one in days.
func age(flag string) func(given string) (time.Duration, error) {
	return func(given string) (time.Duration, error) {
		var d duration
		if err := d.UnmarshalText([]byte(given)); err != nil || d <= 0 {
			return 0, usage("%s %q is not a duration above 0, such as 90s, 10m, 36h or 2d", flag, given)
		}
		return time.Duration(d), nil
	}
}

// rate reads a number of letters in a time, and returns it in letters a second.
func rate(given string) (float64, error) {
	number, unit, _ := strings.Cut(given, "/")
	n, err := strconv.ParseFloat(number, 64)
	per := map[string]float64{"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}[unit]
	if err != nil || per == 0 || !(n > 0 && n <= 1e9) || n/per <= 0 {
		return 0, usage("--rate %q is not a number of letters in a time, such as 50/s, 3000/m or 1000/h", given)
	}
	return n / per, nil
}

// share reads a percentage, or a number between 0 and 1.
func share(given string) (float64, error) {
	number, percent := strings.CutSuffix(given, "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		n /= 100
	}
	if err != nil || !(n > 0 && n <= 1) {
		return 0, usage("--max-redead %q is not a share of the letters, such as 5%% or 0.05", given)
	}
	return n, nil
}
