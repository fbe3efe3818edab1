package cli

import "github.com/spf13/cobra"

func newStatusCommand(*env) *cobra.Command { return &cobra.Command{Use: "status", Hidden: true} }
