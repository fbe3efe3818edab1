package cli

import "github.com/spf13/cobra"

func newUICommand(*env) *cobra.Command { return &cobra.Command{Use: "ui", Hidden: true} }
