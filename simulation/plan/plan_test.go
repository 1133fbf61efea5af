package plan

import (
	"bytes"
	"reflect"
	"testing"
	"time"
)

func TestPlanSurvivesItsFile(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(400) {
		p := Draw(seed, Wanted{})
		data, err := Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		read, err := Decode(data)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, data)
		}
		again, err := Encode(read)
		if err != nil || !bytes.Equal(data, again) {
			t.Fatalf("seed %d: read and written again the plan is another (%v)", seed, err)
		}
		for _, f := range p.Faults {
			seen[f.What.Kind()] = true
		}
	}
	for _, k := range kinds {
		if !seen[k.Kind()] {
			t.Errorf("no seed has the fault %s", k.Kind())
		}
	}
}

func TestDrawIsTheSameForTheSameSeedOnly(t *testing.T) {
	if !reflect.DeepEqual(Draw(3, Wanted{}), Draw(3, Wanted{})) {
		t.Error("the same seed gave two plans")
	}
	if reflect.DeepEqual(Draw(3, Wanted{}).Workload, Draw(4, Wanted{}).Workload) {
		t.Error("two seeds gave one workload")
	}
}

func TestDrawKeepsToWhatIsWanted(t *testing.T) {
	for seed := range uint64(50) {
		p := Draw(seed, Wanted{Nodes: 5, Length: time.Hour, Classes: []Class{ClassNode}})
		if p.Options.Nodes != 5 || p.Options.Length != Duration(time.Hour) || p.Options.Solo {
			t.Fatalf("seed %d: %+v", seed, p.Options)
		}
		for _, f := range p.Faults {
			if f.What.Class() != ClassNode {
				t.Fatalf("seed %d: a fault of class %s", seed, f.What.Class())
			}
		}
	}
	for seed := range uint64(50) {
		if p := Draw(seed, Wanted{Classes: []Class{}}); len(p.Faults) > 0 {
			t.Fatalf("seed %d: %v although none were wanted", seed, p.Faults[0])
		}
	}
}

func TestFaultsThatTakeADaemonDownDoNotOverlapOnANode(t *testing.T) {
	for seed := range uint64(200) {
		until := map[string]Duration{}
		for _, f := range Draw(seed, Wanted{}).Faults {
			if !isDown(f.What) {
				continue
			}
			if f.Begin < until[f.What.On()] {
				t.Fatalf("seed %d: %v begins while another lasts", seed, f)
			}
			until[f.What.On()] = f.End
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	whole, err := Encode(Draw(1, Wanted{Nodes: 3}))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"another version": {`"version": 1`, `"version": 2`},
		"too many nodes":  {`"nodes": 3`, `"nodes": 300`},
		"no policy":       {`"kind": "`, `"kind": "no-`},
		"no verb":         {`"verb": "submit"`, `"verb": "leap"`},
		"no duration":     {`"length": "`, `"length": "x`},
	} {
		t.Run(name, func(t *testing.T) {
			data := bytes.Replace(whole, []byte(change[0]), []byte(change[1]), 1)
			if bytes.Equal(data, whole) {
				t.Fatal("nothing was changed")
			}
			if _, err := Decode(data); err == nil {
				t.Error("taken")
			}
		})
	}
}
