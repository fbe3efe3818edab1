package cli

import "github.com/spf13/cobra"

func newTiersCommand(*env) *cobra.Command { return &cobra.Command{Use: "tiers", Hidden: true} }
