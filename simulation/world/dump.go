package world

import (
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Dump writes all that the store holds, one key a line.
func (w *World) Dump(out io.Writer) {
	for kv := range w.Store.State().Range(w.keys.Root) {
		fmt.Fprintf(out, "%s create=%d mod=%d lease=%x %s\n", kv.Key, kv.Create, kv.Mod, kv.Lease, w.valueText(kv))
	}
}

// valueText is a value as JSON, where its key says what it is.
func (w *World) valueText(kv records.KV) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(kv.Key, w.keys.Root), "/")
	var into proto.Message
	switch kind {
	case "runs":
		into = &recordv1.Run{}
	case "live":
		into = &recordv1.Live{}
	case "assignments":
		into = &recordv1.Assignment{}
	case "nodes":
		into = &recordv1.NodeSession{}
	case "nodeinfo":
		into = &recordv1.NodeInfo{}
	case "history":
		into = &recordv1.History{}
	case "meta":
		into = &recordv1.Cluster{}
	default:
		return fmt.Sprintf("%x", kv.Value)
	}
	if err := records.Decode(kv, into); err != nil {
		return err.Error()
	}
	text, err := protojson.Marshal(into)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
