package boot

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// trace is a sequence whose stages note what they do.
func trace(names string, does func(name string, ctx context.Context) error) (*sequence, *[]string) {
	s, did := &sequence{log: zap.NewNop(), every: time.Hour}, &[]string{}
	for name := range strings.FieldsSeq(names) {
		note := func(verb string) func(context.Context) error {
			return func(ctx context.Context) error {
				*did = append(*did, verb+name)
				return does(verb+name, ctx)
			}
		}
		s.add(stage{name: name, startTimeout: time.Minute, stopTimeout: time.Minute, start: note("+"), stop: note("-")})
	}
	return s, did
}

// A daemon that reads a large store says so while nobody can ask it.
func TestSequenceSaysWhatASlowStartIsAt(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	said := make(chan struct{}, 1)
	s, _ := trace("a slow c", func(step string, ctx context.Context) error {
		if step != "+slow" {
			return nil
		}
		for logged.FilterField(zap.String("stage", "slow")).Len() == 0 {
			select {
			case <-said:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	s.every = time.Millisecond
	s.log = zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		select {
		case said <- struct{}{}:
		default:
		}
		return nil
	}))
	if err := errors.Join(s.start(t.Context()), s.stop(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func TestSequenceTakesBackWhatHadComeUp(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		does func(cancel func(), did string) error
		want string
		err  error
	}{
		"nothing fails": {func(func(), string) error { return nil }, "+a +b +c -c -b -a", nil},
		"a start fails": {func(_ func(), did string) error {
			if did == "+b" {
				return broken
			}
			return nil
		}, "+a +b -a", broken},
		"the context ends in a stage that does not mind": {func(cancel func(), did string) error {
			if did == "+b" {
				cancel()
			}
			return nil
		}, "+a +b -b -a", context.Canceled},
		"the context ends in the last stage": {func(cancel func(), did string) error {
			if did == "+c" {
				cancel()
			}
			return nil
		}, "+a +b +c -c -b -a", context.Canceled},
		"a stop fails": {func(_ func(), did string) error {
			if did == "-c" {
				return broken
			}
			return nil
		}, "+a +b +c -c -b -a", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, did := trace("a b c", func(step string, inner context.Context) error {
				if strings.HasPrefix(step, "-") && inner.Err() != nil {
					t.Errorf("%s has no time", step)
				}
				return test.does(cancel, step)
			})
			if err := s.start(ctx); !errors.Is(err, test.err) {
				t.Errorf("start: %v", err)
			}
			err := s.stop(t.Context())
			if (name == "a stop fails") != errors.Is(err, broken) {
				t.Errorf("stop: %v", err)
			}
			if err := s.stop(t.Context()); err != nil {
				t.Errorf("second stop: %v", err)
			}
			if got := strings.Join(*did, " "); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func TestSequenceStopsEveryStageAfterItsContext(t *testing.T) {
	s, did := trace("a b", func(string, context.Context) error { return nil })
	s.add(stage{
		name: "c", startTimeout: time.Minute, stopTimeout: time.Minute,
		start: func(context.Context) error { return nil },
		stop:  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	})
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if err := s.stop(over); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "stop c") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took < stopHurry || took > 10*stopHurry {
		t.Errorf("took %v", took)
	}
	if !slices.Equal(*did, []string{"+a", "+b", "-b", "-a"}) {
		t.Error(*did)
	}
}
