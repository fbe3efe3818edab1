package layout

import (
	"strings"
	"testing"
)

// TestDocsListTheTestedVersions: the tests run on the versions of tools/rabbitmq-versions.
func TestDocsListTheTestedVersions(t *testing.T) {
	t.Parallel()
	versions := strings.Fields(read(t, "tools/rabbitmq-versions").text)
	if len(versions) < 2 {
		t.Fatalf("tools/rabbitmq-versions has %q", versions)
	}
	for path, claims := range versionClaims(versions) {
		for _, fault := range missing(read(t, path).text, claims) {
			t.Errorf("%s must have %q: tools/rabbitmq-versions has %q", path, fault, versions)
		}
	}
}

// versionClaims returns what each page states about these versions, the oldest first.
func versionClaims(versions []string) map[string][]string {
	newest := versions[len(versions)-1]
	list := strings.Join(versions[:len(versions)-1], ", ") + " and " + newest
	return map[string][]string{
		"README.md":       {"| RabbitMQ | " + versions[0] + " to " + newest + "; CI tests " + list + ". "},
		"docs/brokers.md": {"CI runs the tests on RabbitMQ " + list + ".", "| RabbitMQ | " + strings.Join(versions, " | ") + " |"},
	}
}

// missing returns the claims that a text does not have.
func missing(text string, claims []string) (faults []string) {
	for _, claim := range claims {
		if !strings.Contains(text, claim) {
			faults = append(faults, claim)
		}
	}
	return faults
}
