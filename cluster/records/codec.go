package records

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Writer is the version of the writing rules that this binary follows. A record
// whose min_writer is above it must not be changed by this binary. Version 2 knows
// that a run may have several attempts, version 3 that a command may have an input,
// version 4 that a run may wait for its node without an end.
const Writer uint32 = 4

// FirstWriter is the version that every binary follows.
const FirstWriter uint32 = 1

// MinWriter is the least version that may change the record of a run of a spec.
func MinWriter(spec *recordv1.Spec) uint32 {
	switch {
	case spec.GetRetry().GetOnNodeLoss() == recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT:
		// Another would give it up with its node, where what runs goes on.
		return 4
	case spec.GetStdin() || spec.GetTerminal():
		// Another would start the command without.
		return 3
	case spec.GetRetry() != nil:
		return 2
	}
	return FirstWriter
}

// Encode returns the stored form of a record: the same bytes for the same record.
func Encode(record proto.Message) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(record)
	if err != nil {
		// Only a string that is not UTF-8 can do this; the API refuses those.
		panic(fmt.Sprintf("encode %s: %v", record.ProtoReflect().Descriptor().FullName(), err))
	}
	return data
}

// Decode reads a stored record into into. Fields that this version does not know
// are kept and written back.
func Decode(kv KV, into proto.Message) error {
	if err := proto.Unmarshal(kv.Value, into); err != nil {
		return Errorf(ClassInternal, "decode %s: %w", kv.Key, err)
	}
	return nil
}

// DecodeRun reads a run's record.
func DecodeRun(kv KV) (*recordv1.Run, error) {
	run := &recordv1.Run{}
	return run, Decode(kv, run)
}

// statusField is the number of a run's status in its record.
const statusField protowire.Number = 8

// StatusOfRun reads no more of a run's record than its status.
func StatusOfRun(kv KV) (status recordv1.Status, err error) {
	for rest := kv.Value; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n >= 0 {
			rest = rest[n:]
			if number == statusField && kind == protowire.VarintType {
				var value uint64
				if value, n = protowire.ConsumeVarint(rest); n >= 0 {
					status = recordv1.Status(value) //nolint:gosec // as protobuf reads an enum
				}
			} else {
				n = protowire.ConsumeFieldValue(number, kind, rest)
			}
		}
		if n < 0 {
			return 0, Errorf(ClassInternal, "decode %s: %w", kv.Key, protowire.ParseError(n))
		}
		rest = rest[n:]
	}
	return status, nil
}

// Terminal tells whether a status is one that is never left.
func Terminal(status recordv1.Status) bool {
	switch status {
	case recordv1.Status_STATUS_SUCCEEDED, recordv1.Status_STATUS_FAILED, recordv1.Status_STATUS_TIMED_OUT,
		recordv1.Status_STATUS_CANCELED, recordv1.Status_STATUS_SKIPPED:
		return true
	default:
		return false
	}
}

// ClassOfTrigger returns the class of history of the runs of a trigger.
func ClassOfTrigger(trigger recordv1.Trigger) HistoryClass {
	switch trigger {
	case recordv1.Trigger_TRIGGER_CONSOLE:
		return ClassConsole
	case recordv1.Trigger_TRIGGER_SCHEDULE:
		return ClassSchedule
	default:
		return ClassOther
	}
}
