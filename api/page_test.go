package api

import (
	"testing"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestPageTokenGoesOnWhereItWasMade(t *testing.T) {
	filters := filter{app: "a"}.fingerprint()
	for _, at := range []cursor{
		{}, {before: 17}, {finished: true}, {finished: true, ended: 1700000000000, run: "r.a.x"}, {finished: true, ended: 5, run: "t.a.b.17"},
	} {
		got, err := parseCursor(at.token(filters), filters)
		if err != nil || got != at {
			t.Errorf("%+v: came back as %+v, %v", at, got, err)
		}
	}
}

func TestPageTokenIsRefusedForOtherFilters(t *testing.T) {
	base := filter{app: "a", labels: map[string]string{"x": "y"}, statuses: []errandv1.Status{3, 1}}
	token := cursor{before: 3}.token(base.fingerprint())
	for name, other := range map[string]filter{
		"app":      {app: "b", labels: base.labels, statuses: base.statuses},
		"labels":   {app: "a", labels: map[string]string{"x": "z"}, statuses: base.statuses},
		"statuses": {app: "a", labels: base.labels, statuses: []errandv1.Status{3}},
		"name":     {app: "a", labels: base.labels, statuses: base.statuses, name: "n"},
	} {
		if _, err := parseCursor(token, other.fingerprint()); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	same := filter{app: "a", labels: map[string]string{"x": "y"}, statuses: []errandv1.Status{1, 3, 3}}
	if _, err := parseCursor(token, same.fingerprint()); err != nil {
		t.Errorf("the same filters in another order: %v", err)
	}
}

func FuzzParseCursor(f *testing.F) {
	filters := filter{}.fingerprint()
	f.Add(cursor{before: 17}.token(filters))
	f.Add(cursor{finished: true, ended: 5, run: "r.a.b"}.token(filters))
	f.Add("bCws")
	f.Add("====")
	f.Fuzz(func(t *testing.T, token string) {
		at, err := parseCursor(token, filters)
		if err != nil {
			return
		}
		again, err := parseCursor(at.token(filters), filters)
		if err != nil || again != at {
			t.Fatalf("%q: %+v came back as %+v, %v", token, at, again, err)
		}
	})
}
