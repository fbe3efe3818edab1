package cli

import "github.com/spf13/cobra"

func newDeadCommand(e *env) *cobra.Command {
	c := &cobra.Command{Use: "dead", Short: "Dead letters of a work queue: list, show, redrive, discard, export, import, edit"}
	return group(c)
}

func newOrphansCommand(e *env) *cobra.Command {
	c := &cobra.Command{Use: "orphans", Short: "Orphans: messages whose work queue was gone when their delay was over"}
	return group(c)
}
