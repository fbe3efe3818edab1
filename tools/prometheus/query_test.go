//go:build unix

package prometheus

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestQueryDecodesAVectorAndExplainsAFailure(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.FormValue("query") {
		case `sum by (outcome) (a_total{x="1+1"})`:
			_, _ = fmt.Fprint(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"outcome":"dead"},"value":[1,"2"]}]}}`)
		case "1":
			_, _ = fmt.Fprint(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`)
		default:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprint(w, `{"status":"error","errorType":"bad_data","error":"parse error"}`)
		}
	}))
	defer server.Close()
	var samples []struct{ Metric map[string]string }
	require.NoError(t, Query(t.Context(), server.URL, `sum by (outcome) (a_total{x="1+1"})`, &samples))
	require.Len(t, samples, 1)
	assert.Equal(t, map[string]string{"outcome": "dead"}, samples[0].Metric)
	assert.ErrorContains(t, Query(t.Context(), server.URL, "1", &samples), "the result is a scalar, not a vector")
	assert.ErrorContains(t, Query(t.Context(), server.URL, "(", &samples), "400 Bad Request: parse error")
}
