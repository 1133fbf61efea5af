package records

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Word is the contract's word for a value of one of the records' enums: SUCCEEDED,
// not STATUS_SUCCEEDED. It is empty for the value that stands for none.
func Word(value protoreflect.Enum) string {
	number := value.Number()
	if number == 0 {
		return ""
	}
	values := value.Descriptor().Values()
	this := values.ByNumber(number)
	if this == nil {
		return "unknown"
	}
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	return strings.TrimPrefix(string(this.Name()), prefix)
}
