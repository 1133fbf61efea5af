package records_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// The fixtures are what earlier versions wrote: NAME.N.bin holds the stored bytes,
// NAME.N.txtpb what they mean. They stay for ever; -update only adds the next N
// for a message that has fields in no fixture yet.
var update = flag.Bool("update", false, "add fixtures for fields that have none")

const fixtures = "testdata/records"

// stored are the messages that lie in the store or in a journal as values of
// their own.
var stored = []proto.Message{
	&recordv1.Cluster{}, &recordv1.Run{}, &recordv1.Live{}, &recordv1.History{}, &recordv1.Gone{}, &recordv1.Assignment{},
	&recordv1.NodeSession{}, &recordv1.NodeInfo{}, &recordv1.JournalMeta{}, &recordv1.JournalEntry{},
}

func nameOf(message proto.Message) string { return string(message.ProtoReflect().Descriptor().Name()) }

func fixturesOf(t *testing.T, message proto.Message) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(fixtures, nameOf(message)+".*.bin"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestStoredRecordsDecodeAsTheyWereWritten(t *testing.T) {
	for _, message := range stored {
		if *update {
			addFixture(t, message)
		}
		paths := fixturesOf(t, message)
		if len(paths) == 0 {
			t.Errorf("%s has no fixture: run go test ./cluster/records -run Stored -update", nameOf(message))
		}
		for _, path := range paths {
			t.Run(filepath.Base(path), func(t *testing.T) { checkFixture(t, message, path) })
		}
	}
}

func checkFixture(t *testing.T, message proto.Message, path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(strings.TrimSuffix(path, ".bin") + ".txtpb")
	if err != nil {
		t.Fatal(err)
	}
	want := message.ProtoReflect().New().Interface()
	if err := prototext.Unmarshal(text, want); err != nil {
		t.Fatalf("a field was renamed or removed: %v", err)
	}
	got := message.ProtoReflect().New().Interface()
	if err := records.Decode(records.KV{Key: path, Value: data}, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("decoded\n%s\nwant\n%s", prototext.Format(got), text)
	}
	if encoded := records.Encode(got); !bytes.Equal(encoded, data) {
		t.Errorf("encoded again: %x, want %x", encoded, data)
	}
}

// A field without a fixture could change its number unseen.
func TestStoredRecordsHaveEveryFieldInAFixture(t *testing.T) {
	reached := map[protoreflect.FullName]bool{}
	for _, message := range stored {
		for _, missing := range uncovered(t, message) {
			t.Errorf("%s is in no fixture: run go test ./cluster/records -run Stored -update", missing)
		}
		reach(message.ProtoReflect().Descriptor(), reached)
	}
	messages := recordv1.File_errand_record_v1_record_proto.Messages()
	for i := range messages.Len() {
		if name := messages.Get(i).FullName(); !reached[name] {
			t.Errorf("%s is part of no stored record: add it to the list of this test", name)
		}
	}
}

func reach(descriptor protoreflect.MessageDescriptor, reached map[protoreflect.FullName]bool) {
	if reached[descriptor.FullName()] {
		return
	}
	reached[descriptor.FullName()] = true
	for i := range descriptor.Fields().Len() {
		if inner := descriptor.Fields().Get(i).Message(); inner != nil {
			reach(inner, reached)
		}
	}
}

// uncovered returns the fields of a message, and of those within it, that no
// fixture of it sets.
func uncovered(t *testing.T, message proto.Message) []string {
	t.Helper()
	set := map[protoreflect.FullName]bool{}
	for _, path := range fixturesOf(t, message) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		decoded := message.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(data, decoded); err != nil {
			t.Fatal(err)
		}
		markSet(decoded.ProtoReflect(), set)
	}
	reached := map[protoreflect.FullName]bool{}
	reach(message.ProtoReflect().Descriptor(), reached)
	var missing []string
	for name := range reached {
		found, err := protoregistry.GlobalTypes.FindMessageByName(name)
		if err != nil {
			continue // The entry of a map.
		}
		fields := found.Descriptor().Fields()
		for i := range fields.Len() {
			if !set[fields.Get(i).FullName()] {
				missing = append(missing, string(fields.Get(i).FullName()))
			}
		}
	}
	slices.Sort(missing)
	return missing
}

func markSet(message protoreflect.Message, set map[protoreflect.FullName]bool) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		set[field.FullName()] = true
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				markSet(value.List().Get(i).Message(), set)
			}
		default:
			markSet(value.Message(), set)
		}
		return true
	})
}

func addFixture(t *testing.T, message proto.Message) {
	t.Helper()
	if len(uncovered(t, message)) == 0 {
		return
	}
	full := message.ProtoReflect().New()
	fill(full)
	text, err := prototext.MarshalOptions{Multiline: true}.Marshal(full.Interface())
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(fixtures, fmt.Sprintf("%s.%d", nameOf(message), len(fixturesOf(t, message))+1))
	if err := os.MkdirAll(fixtures, 0o755); err != nil {
		t.Fatal(err)
	}
	for suffix, content := range map[string][]byte{".bin": records.Encode(full.Interface()), ".txtpb": text} {
		if err := os.WriteFile(base+suffix, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// fill sets every field to a value of its own, made from its number.
func fill(message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.IsMap():
			entries := message.Mutable(field).Map()
			for _, suffix := range []string{"a", "b"} {
				entries.Set(scalar(field.MapKey(), suffix).MapKey(), scalar(field.MapValue(), suffix))
			}
		case field.IsList():
			list := message.Mutable(field).List()
			for _, suffix := range []string{"a", "b"} {
				if field.Message() != nil {
					fill(list.AppendMutable().Message())
				} else {
					list.Append(scalar(field, suffix))
				}
			}
		case field.Message() != nil:
			fill(message.Mutable(field).Message())
		default:
			message.Set(field, scalar(field, ""))
		}
	}
}

func scalar(field protoreflect.FieldDescriptor, suffix string) protoreflect.Value {
	number := int64(field.Number())
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(1 + int(number)%(values.Len()-1)).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number) + 100)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number) + 100)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1_700_000_000_000 + number)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0, 0xff, byte(number)})
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(field.Name()) + suffix)
	default:
		panic(fmt.Sprintf("%s is of a kind that no record has used so far", field.FullName()))
	}
}

// An older binary that changes a record keeps what a newer one wrote.
func TestDecodeKeepsUnknownFields(t *testing.T) {
	data := append(records.Encode(&recordv1.Live{NextWake: 7}), 0xfa, 0x3e, 3, 'n', 'e', 'w') // Field 1007.
	live := &recordv1.Live{}
	if err := records.Decode(records.KV{Value: data}, live); err != nil {
		t.Fatal(err)
	}
	live.NextWake = 8
	if got := records.Encode(live); !bytes.HasSuffix(got, []byte("new")) {
		t.Errorf("the unknown field is lost: %x", got)
	}
}

func FuzzDecodeRun(f *testing.F) {
	f.Add([]byte{})
	f.Add(records.Encode(&recordv1.Run{Id: "r.a.b", Labels: map[string]string{"k": "v"}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := records.DecodeRun(records.KV{Key: "k", Value: data})
		if err != nil {
			if records.ClassOf(err) != records.ClassInternal || !strings.Contains(err.Error(), "decode k") {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := records.DecodeRun(records.KV{Value: records.Encode(run)})
		if err != nil || !proto.Equal(run, again) && !bytes.Equal(records.Encode(run), records.Encode(again)) {
			t.Errorf("%v became %v, %v", run, again, err)
		}
	})
}
