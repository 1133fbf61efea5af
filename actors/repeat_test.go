package actors_test

import (
	"slices"
	"testing"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/activation"
)

func TestRepeatsGoDownTheRanksAndAround(t *testing.T) {
	var order []int
	for repeat := range 5 * actors.RepeatsPerRank {
		if past := actors.Past(repeat); repeat%actors.RepeatsPerRank == 0 {
			order = append(order, past)
		} else if past != order[len(order)-1] {
			t.Errorf("repeat %d passes over %d ranks", repeat, past)
		}
	}
	if want := []int{0, 1, 2, actors.PastHere, 0}; !slices.Equal(order, want) {
		t.Errorf("passed over %v, want %v", order, want)
	}
	if actors.PastHere <= activation.RanksTried {
		t.Error("what is for the sender's node goes elsewhere")
	}
}
