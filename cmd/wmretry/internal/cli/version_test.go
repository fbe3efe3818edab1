package cli

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVersions(t *testing.T) {
	t.Parallel()
	released := versions(&debug.BuildInfo{
		Main:     debug.Module{Version: "v0.1.0"},
		Deps:     []*debug.Module{{Path: "example.com/other", Version: "v9.9.9"}, {Path: library, Version: "v0.1.1"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}},
	})
	assert.Contains(t, released, "wmretry v0.1.0\ncommit  abc\nlibrary v0.1.1\ngo      go1.")
	inClone := versions(&debug.BuildInfo{
		Deps:     []*debug.Module{{Path: library, Version: "v0.0.0", Replace: &debug.Module{Path: "../.."}}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	})
	assert.Contains(t, inClone, "wmretry (devel)\ncommit  abc, with changes\nlibrary (devel)\n")
	assert.Contains(t, versions(&debug.BuildInfo{}), "commit  unknown: built outside of a clone, or with -buildvcs=false\n")
}
