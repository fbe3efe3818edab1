package subscriber_test

import ()
