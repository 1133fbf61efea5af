package records

import (
	"fmt"
	"strconv"
	"strings"
)

// EndedMsMax is the highest time that the 13 digits of a history key hold.
const EndedMsMax = 9_999_999_999_999

const historyDigits = 13

// historyBackward begins the time of a key that counts it down. It sorts before every
// digit, and so before the keys that count up.
const historyBackward = "-"

// History is the key of a finished run in its app's history. Its time is what is left
// until EndedMsMax, so that the keys go from the last end to the first: etcd reads a
// range from its beginning only, and what is looked at is nearly always the newest.
func (k Keys) History(run, app string, class HistoryClass, endedMs int64) string {
	var digits [historyDigits]byte
	left := EndedMsMax - clampEnded(endedMs)
	for i := range digits {
		digits[historyDigits-1-i] = byte('0' + left%10)
		left /= 10
	}
	return k.HistoryOfApp(app, class) + historyBackward + string(digits[:]) + "/" + run
}

// HistoryForward is the key as it was before History counted down: a store may hold
// such keys, and nobody writes them any more.
func (k Keys) HistoryForward(run, app string, class HistoryClass, endedMs int64) string {
	return k.HistoryOfApp(app, class) + fmt.Sprintf("%013d/", clampEnded(endedMs)) + run
}

// HistoryParts returns the first and the last bound of the keys of either form in an
// app's history: those that count down are in [backward, forward), the others in
// [forward, end).
func (k Keys) HistoryParts(app string, class HistoryClass) (backward, forward, end string) {
	prefix := k.HistoryOfApp(app, class)
	return prefix + historyBackward, prefix + "0", prefix + ":"
}

// ParseHistory reads the last two parts of a history key of either form.
func ParseHistory(key string) (endedMs int64, run string, err error) {
	rest, run := cutLast(key)
	_, when := cutLast(rest)
	digits, backward := strings.CutPrefix(when, historyBackward)
	endedMs, err = strconv.ParseInt(digits, 10, 64)
	if err != nil || endedMs < 0 || endedMs > EndedMsMax || len(digits) != historyDigits {
		return 0, "", Errorf(ClassInternal, "history key %s holds no time", key)
	}
	if backward {
		endedMs = EndedMsMax - endedMs
	}
	return endedMs, run, nil
}

// cutLast cuts a key at its last slash.
func cutLast(key string) (before, last string) {
	at := strings.LastIndexByte(key, '/')
	return key[:max(at, 0)], key[at+1:]
}

func clampEnded(ms int64) int64 { return min(max(ms, 0), EndedMsMax) }
