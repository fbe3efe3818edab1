package cli

import (
	"errors"
	"maps"
	"reflect"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
)

// filterFlags returns the flags that select letters, and those of one command.
func filterFlags(selected *letters.Filter, own variables) variables {
	metadata := func(by, key, value string) error {
		if before, twice := selected.Metadata[key]; twice && before != value {
			return usage("%s %q twice with different values: no letter has both", by, key)
		}
		if selected.Metadata == nil {
			selected.Metadata = map[string]string{}
		}
		selected.Metadata[key] = value
		return nil
	}
	byKey := &reader{kind: "string", read: func(key string) error { return metadata("", recordkey.Key, key) }}
	all := variables{
		"error-type": &selected.ErrorType, "cause": &selected.Cause, "dead-reason": &selected.DeadReason,
		"handler":    &selected.Handler,
		"reason":     reads(&selected.Reason, expression),
		"older-than": reads(&selected.OlderThan, age("--older-than")),
		"newer-than": reads(&selected.NewerThan, age("--newer-than")),
		"key":        byKey,
		"id": &reader{kind: several, read: func(id string) error {
			selected.IDs = append(selected.IDs, ids(id)...)
			return nil
		}},
		"meta": &reader{kind: several, read: func(pair string) error { // after key
			key, value, found := strings.Cut(pair, "=")
			if !found || key == "" {
				return usage("--meta %q: it must be key=value", pair)
			}
			if key == recordkey.Key && len(byKey.texts) > 0 {
				return metadata("--key and --meta name", key, value)
			}
			return metadata("--meta names", key, value)
		}},
	}
	maps.Copy(all, own)
	return all
}

// selects reports whether a filter leaves any letter out.
func selects(filter letters.Filter) bool { return !reflect.ValueOf(filter).IsZero() }

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

// ids returns an id, and what it stands for in the form in which ids are printed, with control characters escaped.
func ids(id string) []string {
	unquoted, err := strconv.Unquote(`"` + strings.ReplaceAll(id, `"`, `\"`) + `"`)
	if err != nil || unquoted == id {
		return []string{id}
	}
	return []string{id, unquoted}
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
		if err := d.Set(given); err != nil || d <= 0 {
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
