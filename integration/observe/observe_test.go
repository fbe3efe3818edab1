// Package observe_test tests on a real broker what observers see.
package observe_test

import (
	_ "github.com/tieredretry/watermill-retry/observe"
)
