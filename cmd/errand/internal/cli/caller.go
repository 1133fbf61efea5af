package cli

import (
	"strings"
	"unicode"
)

// callerRunesMax is how long a name the API takes.
const callerRunesMax = 128

// caller says who asks, as in ann@build-7, for the records of what is asked. It
// is empty when neither the user nor the machine has a name.
func (a *app) caller() string {
	name := a.environ["USER"]
	if name == "" {
		name = a.environ["LOGNAME"]
	}
	if name == "" {
		if account, err := a.account(); err == nil {
			name = account.Username
		}
	}
	if host, err := a.hostname(); err == nil && host != "" {
		name = strings.TrimPrefix(name+"@"+host, "@")
	}
	name = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, name)
	if runes := []rune(name); len(runes) > callerRunesMax {
		name = string(runes[:callerRunesMax])
	}
	return name
}
