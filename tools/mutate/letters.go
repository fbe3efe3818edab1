package main

var letters = []promise{
	{"Dead letters: a letter is removed only after it is confirmed where it was sent to, and only letters that are " +
		"selected", []mutation{
		{
			name: "a letter is removed before it is sent", breaks: "a letter whose work queue refuses it is lost",
			file: "rabbitmq/deadletter/source.go", old: "\t\tif err == nil {\n", new: "\t\tif true {\n",
			in:    "integration/deadletter",
			tests: "TestAWorkQueueThatRefusesStopsTheRedrive|TestLettersWhoseQueueIsGoneStay",
		},
		{
			name: "the limit of a redrive is ignored", breaks: "a redrive of ten letters sends all of them",
			file: "internal/redrive/pass.go", old: "if limit == 0 || r.Removed()", new: "if limit >= 0 || r.Removed()",
			in: "integration/deadletter", tests: "TestRedriveOfSomeLetters",
		},
		{
			name: "the canary is not watched", breaks: "letters that die again are all sent",
			file: "internal/redrive/redead.go", old: "if !r.isCanary() {", new: "if !r.isCanary() || r.isCanary() {",
			in: "integration/deadletter", tests: "TestTheCanaryDiesAgain",
		},
		{
			name: "two redrives at a time", breaks: "two redrives of one queue send letters twice",
			file: "rabbitmq/deadletter/run.go",
			old:  "if !c.Options.DryRun {\n\t\tunlock",
			new:  "if false {\n\t\tunlock",
			in:   "integration/deadletter", tests: "TestOneRedriveAtATime",
		},
		{
			name:   "a redriven message keeps its record",
			breaks: "a redriven message is dead-lettered at its next failure",
			file:   "rabbitmq/deadletter/publishing.go", old: "was := original(d, prefix)", new: "was := *d",
			in: "rabbitmq/deadletter", tests: "TestFreshIsTheMessageOfTheFirstTime",
		},
		{
			name: "orphans do not go home", breaks: "an orphan is sent to a queue that does not know its record",
			file: "rabbitmq/deadletter/source.go", old: `case s.through != "":`, new: "case false:",
			in: "integration/deadletter", tests: "TestOrphansGoHome",
		},
		{
			name: "browse does not give back", breaks: "letters that were listed are gone",
			file: "rabbitmq/deadletter/look.go",
			old:  "l.queue, l.tag(len(l.consumers)), false, false",
			new:  "l.queue, l.tag(len(l.consumers)), true, false",
			in:   "integration/deadletter", tests: "TestAHundredListingsLoseNothing|TestALoopThatEndsEarlyGivesAllBack",
		},
		{
			name:   "letters are not replaced below the limit",
			breaks: "a queue with a delivery limit drops letters that were looked at often",
			file:   "rabbitmq/deadletter/limit.go",
			old:    "limitMargin limit = lowestLimit - 1",
			new:    "limitMargin limit = 0",
			in:     "rabbitmq/deadletter", tests: "TestLettersAreReplacedBelowTheLimit",
		},
		{
			name:   "the lower limit is ignored",
			breaks: "a delivery limit of a policy is not seen, and a look drops letters",
			file:   "rabbitmq/deadletter/limit.go",
			old:    "n := min(*policy, *argument)\n",
			new:    "n := max(*policy, *argument)\n",
			in:     "rabbitmq/deadletter", tests: "TestLimitOf",
		},
		{
			name:   "letters of one message share its error",
			breaks: "a letter that was not confirmed is removed, because another one was",
			file:   "internal/rabbitmq/publisher/call.go", old: "failures[next] = err", new: "failures[0] = err",
			in: "internal/rabbitmq/publisher", tests: "TestEachMessageOfACallHasItsOwnError",
		},
		{
			name:   "letters of an unknown age are old",
			breaks: "a discard of old letters removes letters without a time",
			file:   "letters/filter.go", old: "if f.OlderThan > 0 && (dead.IsZero() || ",
			new: "if f.OlderThan > 0 && (",
			in:  "letters", tests: "TestALetterWithoutATimeIsNeitherOldNorNew",
		},
		{
			name: "a filter of handlers is ignored", breaks: "a discard of one handler's letters removes those of all",
			file: "letters/filter.go", old: `f.Handler != "" && f.Handler != l.Record.Handler ||`, new: "",
			in: "letters", tests: "TestFilter",
		},
		{
			name: "a redrive stops too early", breaks: "one letter that dies again ends a redrive with MaxRedead",
			file: "internal/redrive/redead.go", old: "sent >= fewestForShare && ", new: "",
			in: "internal/redrive", tests: "TestRedead",
		},
		{
			name: "causes run together", breaks: "letters are grouped without the number or id that differs",
			file: "letters/cause.go",
			old:  "reason, _, _ = strings.Cut(reason, recovererStack)",
			new:  "_ = recovererStack",
			in:   "letters", tests: "TestNormalise",
		},
	}},
	{"The page: it shows hostile letters as text, and changes nothing for foreign pages, hosts and users who may " +
		"only read", []mutation{
		{
			name: "a page that only shows changes", breaks: "whoever can see the page can discard letters",
			file: "rabbitmq/deadletter/page/page.go", old: "case isChange && !p.config.AllowWrite:", new: "case false:",
			in: "rabbitmq/deadletter/page", tests: "TestReadOnly",
		},
		{
			name: "foreign pages may post", breaks: "any page in the operator's browser can discard letters",
			file: "rabbitmq/deadletter/page/page.go",
			old:  "http.NewCrossOriginProtection().Handler(http.HandlerFunc(p.route))",
			new:  "http.HandlerFunc(p.route)",
			in:   "rabbitmq/deadletter/page", tests: "TestForeignPagesAreRefused",
		},
		{
			name: "letters are not escaped", breaks: "a letter runs scripts in the operator's browser",
			file: "rabbitmq/deadletter/page/page.go", old: `"html/template"`, new: `"text/template"`,
			in: "rabbitmq/deadletter/page", tests: "TestHostileLettersAreEscaped",
		},
		{
			name:   "foreign hosts are answered",
			breaks: "a name that an attacker points to the page's address can read letters",
			file:   "rabbitmq/deadletter/page/page.go",
			old:    "if len(p.config.Hosts) > 0 &&",
			new:    "if len(p.config.Hosts) > 100 &&",
			in:     "rabbitmq/deadletter/page", tests: "TestForeignHostsAreRefused",
		},
		{
			name: "forms have no bound", breaks: "a large request takes the memory of the app",
			file: "rabbitmq/deadletter/page/page.go",
			old:  "http.MaxBytesReader(w, r.Body, maxForm)",
			new:  "http.MaxBytesReader(w, r.Body, 1<<40)",
			in:   "rabbitmq/deadletter/page", tests: "TestLargeFormsAreRefused",
		},
		{
			name: "no security policy", breaks: "a script that gets into the page runs",
			file: "rabbitmq/deadletter/page/page.go",
			old:  `header.Set("Content-Security-Policy", securityPolicy)`,
			new:  "_ = securityPolicy",
			in:   "rabbitmq/deadletter/page", tests: "TestHeadersOfEveryAnswer",
		},
	}},
}
