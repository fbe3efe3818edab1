//go:build unix

package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// Query evaluates an expression now, on the Prometheus at an address, and decodes the samples of its vector. Its HTTP
// API is stable. The function for it in client_golang is not: 1.25 returns four values, 1.24 three.
func Query(ctx context.Context, address, expr string, samples any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		address+"/api/v1/query?timeout=30s&query="+url.QueryEscape(expr), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Error string
		Data  struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s answers %s: %w", address, response.Status, err)
	}
	switch {
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answers %s: %s", address, response.Status, answer.Error)
	case answer.Data.ResultType != "vector":
		return fmt.Errorf("the result is a %s, not a vector", answer.Data.ResultType)
	}
	return json.Unmarshal(answer.Data.Result, samples)
}
