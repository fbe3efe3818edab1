// Command boards writes the boards into a folder.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/tieredretry/watermill-retry/integration/observe/board"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: boards FOLDER")
	}
	for _, b := range board.Boards() {
		text, err := b.JSON()
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], b.File), text, 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
