package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// heapFigures finds the two figures in a heap profile's text.
var heapFigures = regexp.MustCompile(`(?m)^# (?:HeapAlloc = |Stack = )([0-9]+)`)

// collections come before a heap is read: pools give back what nobody took after two,
// and a stack that grew shrinks by half with each.
const collections = 3

// heap is what a daemon's heap and stacks hold after collections, in bytes.
type heap struct {
	total int64
	// engine is what a profile of the heap finds there of neither the embedded store nor
	// the null driver. It is sampled.
	engine float64
}

// heap reads it.
func (l *live) heap(ctx context.Context) (h heap, err error) {
	for range collections {
		if h, err = l.collect(ctx); err != nil {
			return h, err
		}
	}
	return h, nil
}

// collect reads the heap after one collection.
func (l *live) collect(ctx context.Context) (h heap, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.daemon.Address+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return h, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return h, err
	}
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return h, err
	}
	found := heapFigures.FindAllSubmatch(text, -1)
	if len(found) != 2 {
		return h, fmt.Errorf("the heap profile has %d of two figures", len(found))
	}
	for _, match := range found {
		figure, err := strconv.ParseInt(string(match[1]), 10, 64)
		if err != nil {
			return h, err
		}
		h.total += figure
	}
	h.engine, err = engineOf(string(text))
	return h, err
}

// record is the first line of an allocation's place in a heap profile's text: how many
// objects are in use and their bytes, as sampled.
var record = regexp.MustCompile(`^([0-9]+): ([0-9]+) \[`)

// sampled is the first line of a heap profile's text, which says after how many bytes
// one is sampled, doubled.
var sampled = regexp.MustCompile(`^heap profile: .* @ heap/([0-9]+)`)

// engineOf adds up what is in use by an estimate from the samples, without what the
// embedded store's server and the null driver have allocated.
func engineOf(text string) (float64, error) {
	head := sampled.FindStringSubmatch(text)
	if head == nil {
		return 0, errors.New("the heap profile does not say how it was sampled")
	}
	twice, err := strconv.ParseFloat(head[1], 64)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, place := range strings.Split(text, "\n\n") {
		for len(place) > 0 && !record.MatchString(place) {
			_, rest, found := strings.Cut(place, "\n")
			if !found {
				break
			}
			place = rest
		}
		figures := record.FindStringSubmatch(place)
		if figures == nil || strings.Contains(place, "go.etcd.io/etcd/server") || strings.Contains(place, "nodes/sandbox/null.") {
			continue
		}
		objects, objectsErr := strconv.ParseFloat(figures[1], 64)
		bytes, bytesErr := strconv.ParseFloat(figures[2], 64)
		if err := errors.Join(objectsErr, bytesErr); err != nil {
			return 0, err
		}
		if objects > 0 {
			total += bytes / (1 - math.Exp(-bytes/objects/(twice/2)))
		}
	}
	return total, nil
}
