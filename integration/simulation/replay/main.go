// Command replay runs a test binary that was built for wasip1, with a clock and a random source that come from a seed:
//
//	GOOS=wasip1 GOARCH=wasm go test -exec replay ./simulation
//
// Only there are equal runs equal: natively, the scheduler, select and the order of maps are random in each run. It
// runs the binary twice at the same time, and fails where the outputs differ.
package main

import (
	"bytes"
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("replay: ")
	code, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	ctx := experimental.WithCompilationWorkers(context.Background(), runtime.NumCPU())
	cache, settle := compiled()
	machine := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCompilationCache(cache))
	wasi_snapshot_preview1.MustInstantiate(ctx, machine)
	module, err := machine.CompileModule(ctx, code)
	if err != nil {
		log.Fatal(err)
	}
	settle()
	var outputs [2]bytes.Buffer
	var codes [2]uint32
	var running sync.WaitGroup
	for i := range outputs {
		running.Go(func() {
			_, err := machine.InstantiateModule(ctx, module, config(&outputs[i]))
			var exit *sys.ExitError
			if errors.As(err, &exit) {
				codes[i] = exit.ExitCode()
			} else if err != nil {
				codes[i] = 1
				outputs[i].WriteString(err.Error() + "\n")
			}
		})
	}
	running.Wait()
	_, _ = os.Stdout.Write(outputs[0].Bytes())
	if !bytes.Equal(outputs[0].Bytes(), outputs[1].Bytes()) {
		_, _ = os.Stdout.Write(outputs[1].Bytes())
		log.Fatal("the same run had two outputs: something in it is random that is not from the seed")
	}
	os.Exit(int(codes[0]))
}

// compiled has the machine code of the last program, which takes long to make, in a folder beside this one. settle is
// called when the program is compiled, and removes that of another one. Where there is no folder, it is in memory.
func compiled() (cache wazero.CompilationCache, settle func()) {
	own, err := os.Executable()
	folder := filepath.Join(filepath.Dir(own), "compiled")
	if err == nil {
		cache, err = wazero.NewCompilationCacheWithDir(folder)
	}
	if err != nil {
		return wazero.NewCompilationCache(), func() {}
	}
	had, _ := filepath.Glob(filepath.Join(folder, "*", "*"))
	return cache, func() {
		if has, _ := filepath.Glob(filepath.Join(folder, "*", "*")); len(has) > len(had) {
			for _, old := range had {
				_ = os.Remove(old)
			}
		}
	}
}

func config(output *bytes.Buffer) wazero.ModuleConfig {
	now := int64(0) // a step at each look: a loop that waits for the time to pass must end
	config := wazero.NewModuleConfig().WithName("").WithArgs(os.Args[1:]...).WithStdout(output).WithStderr(output).
		WithRandSource(rand.NewChaCha8([32]byte([]byte("the simulation has only this seed")))).
		WithWalltime(func() (int64, int32) { now += 1000; return 946684800 + now/1e9, int32(now % 1e9) }, 1000).
		WithNanotime(func() int64 { now += 1000; return now }, 1000).
		WithNanosleep(func(ns int64) { now += ns }).
		WithOsyield(func() {})
	for _, each := range os.Environ() {
		if name, value, _ := strings.Cut(each, "="); strings.HasPrefix(name, "SIM_") {
			config = config.WithEnv(name, value)
		}
	}
	return config
}
