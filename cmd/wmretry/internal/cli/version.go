package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// library is the module whose dead letters the command reads.
const library = "github.com/tieredretry/watermill-retry"

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

// versions returns a line for each version.
func versions(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	commit := cmp.Or(settings["vcs.revision"], "unknown: it was not built in a clone")
	if settings["vcs.modified"] == "true" {
		commit += ", with changes"
	}
	libraryVersion := "unknown"
	for _, dependency := range info.Deps {
		if dependency.Path != library {
			continue
		}
		if libraryVersion = dependency.Version; dependency.Replace != nil {
			libraryVersion = "that of the same clone"
		}
	}
	return fmt.Sprintf("wmretry %s\ncommit  %s\nlibrary %s\ngo      %s %s/%s\n",
		version(info), commit, libraryVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
