package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
)

var notInName = regexp.MustCompile("[^a-zA-Z0-9]+")

// profile writes a CPU profile of this process until end, where the run has a folder for it.
func (b *bench) profile(side string) (end func(), err error) {
	if b.profiles == "" {
		return func() {}, nil
	}
	name := b.series() + "-" + b.question + "-" + notInName.ReplaceAllString(side, "-") + ".pprof"
	file, err := os.Create(filepath.Join(b.profiles, name))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { pprof.StopCPUProfile(); _ = file.Close() }, nil
}
