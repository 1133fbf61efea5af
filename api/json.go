package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// faultsField is the highest number a field can have. It carries what is wrong with a
// JSON request from the codec, whose errors lose their detail in Connect, to the
// interceptor, which refuses the call. No message has a field of this number.
const faultsField protowire.Number = 1<<29 - 1

// withExactJSON takes JSON requests only if each of their fields is known. One that is
// left out by a misspelling could mean a run without its limit. A caller that speaks
// protobuf has its names checked by its own compiler, and unknown fields there are
// those of a newer caller: they are passed over.
func withExactJSON() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(exactJSON{name: "json"}),
		connect.WithCodec(exactJSON{name: "json; charset=utf-8"}))
}

// exactJSON implements connect.Codec.
type exactJSON struct{ name string }

func (c exactJSON) Name() string { return c.name }

func (c exactJSON) Marshal(message any) ([]byte, error) {
	shown, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", message)
	}
	return protojson.Marshal(shown)
}

// Unmarshal reads a message. What is unknown in it is not an error here: it goes with
// the message, for refuseFaults.
func (c exactJSON) Unmarshal(text []byte, message any) error {
	read, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", message)
	}
	if len(text) == 0 {
		return errors.New("an empty text is no JSON object")
	}
	exact := protojson.Unmarshal(text, read)
	if exact == nil {
		return nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, read); err != nil {
		return err // not only unknown names are wrong with it
	}
	var w unknownNames
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return exact
	}
	w.message("", read.ProtoReflect().Descriptor(), object)
	if len(w.found) == 0 {
		return exact
	}
	faults, err := proto.Marshal(&errandv1.ErrorInfo{Fields: w.found})
	if err != nil {
		return exact
	}
	carried := protowire.AppendTag(nil, faultsField, protowire.BytesType)
	read.ProtoReflect().SetUnknown(protowire.AppendBytes(carried, faults))
	return nil
}

// refuseFaults returns what exactJSON found wrong with a request.
func refuseFaults(message any) error {
	read, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	carried := read.ProtoReflect().GetUnknown()
	number, kind, n := protowire.ConsumeTag(carried)
	if n < 0 || number != faultsField || kind != protowire.BytesType {
		return nil
	}
	faults, n := protowire.ConsumeBytes(carried[n:])
	info := &errandv1.ErrorInfo{}
	if n < 0 || proto.Unmarshal(faults, info) != nil || len(info.GetFields()) == 0 {
		return nil
	}
	violations := make([]Violation, 0, len(info.GetFields()))
	for _, field := range info.GetFields() {
		violations = append(violations, Violation{Field: field.GetField(), Text: field.GetText()})
	}
	return invalid(violations)
}

// exactConn refuses the faulty messages of a stream.
type exactConn struct {
	connect.StreamingHandlerConn
}

// Receive implements connect.StreamingHandlerConn.
func (c exactConn) Receive(message any) error {
	if err := c.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	return refuseFaults(message)
}

// unknownNames collects the names in a JSON value that its message does not have, up to
// as many as an error shows.
type unknownNames struct {
	found []*errandv1.FieldViolation
}

func (w *unknownNames) add(at, text string) {
	if len(w.found) < violationsShownMax {
		w.found = append(w.found, &errandv1.FieldViolation{Field: at, Text: text})
	}
}

func (w *unknownNames) message(at string, kind protoreflect.MessageDescriptor, object map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		field := kind.Fields().ByJSONName(key)
		if field == nil {
			field = kind.Fields().ByTextName(key)
		}
		if field == nil {
			w.add(below(at, key), "is not a field of "+string(kind.Name()))
			continue
		}
		w.field(below(at, string(field.Name())), field, object[key])
	}
}

func (w *unknownNames) field(at string, field protoreflect.FieldDescriptor, value any) {
	switch value := value.(type) {
	case map[string]any:
		if !field.IsMap() {
			w.value(at, field, value)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			w.value(at+"["+quoteShort(key)+"]", field.MapValue(), value[key])
		}
	case []any:
		for i, element := range value {
			w.value(at+"["+strconv.Itoa(i)+"]", field, element)
		}
	default:
		w.value(at, field, value)
	}
}

// value looks at one value of a field: an element of it if it is a list or a map.
func (w *unknownNames) value(at string, field protoreflect.FieldDescriptor, value any) {
	switch value := value.(type) {
	case map[string]any:
		if kind := field.Message(); kind != nil && kind.ParentFile().Package() != "google.protobuf" {
			w.message(at, kind, value)
		}
	case string:
		if kind := field.Enum(); kind != nil && kind.Values().ByName(protoreflect.Name(value)) == nil {
			w.add(at, quoteShort(value)+" is not a "+string(kind.Name()))
		}
	}
}

// below is the path of a part. A name that nothing is called by is quoted.
func below(at, name string) string {
	if !envKeyPattern.MatchString(name) || len(name) > quotedBytesMax {
		return at + "[" + quoteShort(name) + "]"
	}
	if at == "" {
		return name
	}
	return at + "." + name
}
