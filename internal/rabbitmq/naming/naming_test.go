package naming

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestAnExchangeOfTheAppIsNoneOfTheRetryTopology: its publishers and bindings would lead to retries.
func TestAnExchangeOfTheAppIsNoneOfTheRetryTopology(t *testing.T) {
	t.Parallel()
	p := Prefix("retry")
	for _, exchange := range []string{
		p.RetryExchange(), p.GroupExchange("group"), p.GroupExchange("group") + returnSuffix, p.AnyReturnExchange(),
		p.Orphans(), p.OrderControl(),
	} {
		assert.ErrorContains(t, p.ValidateExchange(exchange, "group"), "choose another Prefix", exchange)
		assert.NoError(t, Prefix("own").ValidateExchange(exchange, ""), exchange)
	}
	for _, exchange := range []string{"", "orders", "retries"} {
		assert.NoError(t, p.ValidateExchange(exchange, "group"), exchange)
	}
}
