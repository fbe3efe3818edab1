package layout

import (
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/configamqp3"
)

// inCode finds the first word of each line of the code blocks in a package comment.
var inCode = regexp.MustCompile(`(?m)^//\t([A-Z]\w*)`)

// TestEdgesListTheirAPI: go doc shows neither fields nor methods of an alias, so the comment of each edge lists them.
func TestEdgesListTheirAPI(t *testing.T) {
	t.Parallel()
	for path, types := range map[string][]reflect.Type{
		"config/doc.go": {
			reflect.TypeFor[config.BuilderConfig](), reflect.TypeFor[*config.Builder](), reflect.TypeFor[*config.Connection](),
		},
		"configamqp3/doc.go": {
			reflect.TypeFor[configamqp3.BuilderConfig](), reflect.TypeFor[*configamqp3.Builder](), reflect.TypeFor[*configamqp3.Connection](),
		},
	} {
		var listed []string
		for _, line := range inCode.FindAllStringSubmatch(read(t, path).text, -1) {
			listed = append(listed, line[1])
		}
		slices.Sort(listed)
		if want := fieldsAndMethods(types[0], types[1:]...); !slices.Equal(listed, want) {
			t.Errorf("%s lists %q, want the fields of BuilderConfig and the methods of Builder and Connection: %q", path, listed, want)
		}
	}
}

// fieldsAndMethods returns the names of a struct's fields and of other types' methods, sorted. Format is for package fmt only.
func fieldsAndMethods(fields reflect.Type, methods ...reflect.Type) (names []string) {
	for i := range fields.NumField() {
		names = append(names, fields.Field(i).Name)
	}
	for _, of := range methods {
		for i := range of.NumMethod() {
			if name := of.Method(i).Name; name != "Format" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}
