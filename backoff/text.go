package backoff

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseSchedule reads delays separated by white space, such as
// "1s 5s 25s*3 10m". A delay has the format of [time.ParseDuration], and *n
// repeats it n times. The returned schedule is valid. The error reports the first
// fault only, with the number of its word.
func ParseSchedule(text string) (Schedule, error) {
	var s Schedule
	for i, word := range strings.Fields(text) {
		delay, times, err := parseWord(word)
		if err == nil && times > maxRetries-len(s) {
			err = fmt.Errorf("makes more than %d retries: want at most %[1]d", maxRetries)
		}
		if err != nil {
			return nil, fmt.Errorf("backoff: schedule, word %d, %.60q: %w", i+1, word, err)
		}
		for range times {
			s = append(s, delay)
		}
	}
	if len(s) == 0 {
		return nil, fmt.Errorf("backoff: schedule is empty: want 1 to %d delays separated by spaces, such as \"1s 5s "+
			"25s*3 10m\"", maxRetries)
	}
	return s, nil
}

func parseWord(word string) (delay time.Duration, times int, err error) {
	spelling, count, repeated := strings.Cut(word, "*")

	delay, err = time.ParseDuration(spelling)
	if err != nil {
		return 0, 0, fmt.Errorf("want a delay from %v to %v, such as 10s, 90s or 10s*3, and spaces between delays",
			Tier(minDelay), Tier(MaxDelay))
	}
	if err := checkDelay(delay); err != nil {
		return 0, 0, err
	}
	if !repeated {
		return delay, 1, nil
	}

	n, err := strconv.ParseUint(count, 10, 64)
	if err != nil || n < 1 || n > maxRetries {
		return 0, 0, fmt.Errorf("want a whole number from 1 to %d after the *", maxRetries)
	}
	return delay, int(n), nil
}

// String returns the schedule in the format of [ParseSchedule]: each delay as
// [Tier.String] returns it, equal delays in a row as one word with *n.
func (s Schedule) String() string {
	var text strings.Builder
	for first := 0; first < len(s); {
		if first > 0 {
			text.WriteByte(' ')
		}
		n := run(s[first:])
		text.WriteString(Tier(s[first]).String())
		if n > 1 {
			text.WriteByte('*')
			text.WriteString(strconv.Itoa(n))
		}
		first += n
	}
	return text.String()
}

// MarshalText returns [Schedule.String], so that a schedule is one string in
// JSON, YAML, environment variables and flags. For a schedule that is not valid
// it returns the error of [Schedule.Validate], because [Schedule.UnmarshalText]
// could not read it. An empty schedule is the empty text, so that a
// configuration without a schedule can be written.
func (s Schedule) MarshalText() ([]byte, error) {
	if len(s) == 0 {
		return []byte{}, nil
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads the format of [ParseSchedule]. The empty text is the empty
// schedule, which [Schedule.Validate] reports. If it returns an error, the
// schedule keeps its value.
func (s *Schedule) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*s = nil
		return nil
	}
	parsed, err := ParseSchedule(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}
