package cli

import "github.com/spf13/cobra"

func newDemoCommand(*env) *cobra.Command { return &cobra.Command{Use: "demo"} }
