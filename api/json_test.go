package api_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestJSONFieldsThatAreUnknownAreRefusedByTheirPath(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name, path, body string
		fields           []string
	}{
		{"at the top", createPath, `{"app":"web","bogus":1,"spec":{"driver":"null"}}`, []string{"bogus: is not a field of CreateRunRequest"}},
		{"nested", createPath, `{"spec":{"driver":"null","memory":"1Gi"}}`, []string{"spec.memory: is not a field of RunSpec"}},
		{"several", createPath, `{"x":{},"spec":{"driver":"null","timeOut":"1s"}}`, []string{"spec.timeOut: is not", "x: is not"}},
		{"not a name", createPath, `{"a b\n":1,"spec":{"driver":"null"}}`, []string{`["a b\n"]: is not a field`}},
		{"value of an enum", createPath, `{"trigger":"TRIGGER_NOPE","spec":{"driver":"null"}}`, []string{`trigger: "TRIGGER_NOPE" is not a Trigger`}},
		{"value in a list of enums", listPath, `{"statuses":["STATUS_FAILED","FAILED"]}`, []string{`statuses[1]: "FAILED" is not a Status`}},
		{"of an empty message", "/errand.v1.ImageService/List", `{"app":"x"}`, []string{"app: is not a field of ListImagesRequest"}},
	} {
		for _, kind := range []string{"application/json", "application/json; charset=utf-8"} {
			t.Run(c.name+", "+kind, func(t *testing.T) {
				before := r.store.count.Load()
				status, body := r.post(c.path, c.body, func(request *http.Request) {
					withToken(request)
					request.Header.Set("Content-Type", kind)
				})
				plain := strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(body)
				for _, want := range append(c.fields, `"code":"invalid_argument"`, `"code":"INVALID_FIELD"`) {
					if status != http.StatusBadRequest || !strings.Contains(plain, want) {
						t.Errorf("%d, no %s in %s", status, want, plain)
					}
				}
				if r.store.count.Load() != before {
					t.Error("the store was asked")
				}
			})
		}
	}
}

func TestJSONThatIsKnownIsTakenUnderEitherName(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{
		`{"app":"web","spec":{"driver":"null","startDeadline":"9s","env":{"ANY_NAME":"x"}},"labels":{"bogus":"1"}}`,
		`{"app":"web","spec":{"driver":"null","start_deadline":"9s"},"name":null}`,
	} {
		if status, answer := r.post(createPath, body, withToken); status != http.StatusOK || !strings.Contains(answer, `"startDeadline":"9s"`) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	if status, answer := r.post(createPath, `{"spec":`, withToken); status != http.StatusBadRequest || !strings.Contains(answer, "invalid_argument") {
		t.Errorf("malformed: %d %s", status, answer)
	}
}

func TestJSONFieldsThatAreUnknownAreRefusedInAStream(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	message := []byte(`{"id":"r.web.a","folow":true}`)
	envelope := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	request, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.url+"/errand.v1.RunService/Logs", bytes.NewReader(append(envelope, message...)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/connect+json")
	withToken(request)
	if _, body := r.send(request); !strings.Contains(body, "folow: is not a field of LogsRequest") || !strings.Contains(body, "INVALID_FIELD") {
		t.Errorf("answered %q", body)
	}
}

func TestBinaryFieldsThatAreUnknownArePassedOver(t *testing.T) {
	r := newRig(t)
	message := &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Driver: "null"}}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 9999, protowire.VarintType), 1)
	message.ProtoReflect().SetUnknown(unknown)
	message.GetSpec().ProtoReflect().SetUnknown(unknown)
	if _, err := r.runs.Create(context.WithoutCancel(r.ctx), message); err != nil {
		t.Error(err)
	}
}
