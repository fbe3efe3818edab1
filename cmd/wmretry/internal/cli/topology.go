package cli

import "github.com/spf13/cobra"

func newTopologyCommand(*env) *cobra.Command { return &cobra.Command{Use: "topology", Hidden: true} }
