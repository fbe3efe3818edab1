//go:build newest

package conformance

import "github.com/IBM/sarama"

func init() { cooperative = sarama.NewBalanceStrategyCooperativeSticky }
