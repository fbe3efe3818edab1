package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the versions of the command, of the library in it, and of Go",
		Example: `  wmretry version`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(e.stdout, versions(buildInfo()))
			return err
		},
	}
}

func buildInfo() *debug.BuildInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return &debug.BuildInfo{}
	}
	return info
}

func version(info *debug.BuildInfo) string { return cmp.Or(info.Main.Version, "(devel)") }

// library is the module whose dead letters the command reads.
const library = "github.com/tieredretry/watermill-retry"

func libraryVersion(info *debug.BuildInfo) string {
	for _, m := range info.Deps {
		if m.Path == library && m.Replace == nil {
			return m.Version
		}
	}
	return "(devel)"
}

// versions returns a line for each version.
func versions(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	commit := cmp.Or(settings["vcs.revision"], "unknown: built outside of a clone, or with -buildvcs=false")
	if settings["vcs.modified"] == "true" {
		commit += ", with changes"
	}
	return fmt.Sprintf("wmretry %s\ncommit  %s\nlibrary %s\ngo      %s %s/%s\n",
		version(info), commit, libraryVersion(info), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
