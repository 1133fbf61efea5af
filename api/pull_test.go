package api_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// pulls are those of one run.
type pulls struct{}

func (pulls) PullOf(run string) (*errandv1.ImagePull, bool) {
	return &errandv1.ImagePull{Runs: []string{run}}, true
}

func (pulls) Pulls() []*errandv1.ImagePull { return []*errandv1.ImagePull{{Reference: "x"}} }

func TestPullOfAnImage(t *testing.T) {
	stored := &shelf{}
	r := newRig(t, func(config *api.Config) { config.Images = stored })
	pull := func(request *errandv1.PullImageRequest) ([]*errandv1.PullImageResponse, error) {
		t.Helper()
		stream, err := r.images.Pull(r.ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stream.Close() }()
		var got []*errandv1.PullImageResponse
		for stream.Receive() {
			got = append(got, stream.Msg())
		}
		return got, stream.Err()
	}
	t.Run("tells its progress and then the image", func(t *testing.T) {
		got, err := pull(&errandv1.PullImageRequest{Name: "x", Credential: &errandv1.RegistryCredential{Username: "u", Password: "p"}})
		if err != nil || len(got) != 2 || got[0].GetProgress().GetTotalBytes() != 2 || got[1].GetImage().GetPulledAt().AsTime().UnixMilli() != 2000 {
			t.Fatalf("got %v, %v", got, err)
		}
		if stored.credential.GetPassword() != "p" {
			t.Errorf("credential %v", stored.credential)
		}
	})
	for name, request := range map[string]*errandv1.PullImageRequest{
		"without a name":             {},
		"of a bad name":              {Name: "Not A Name"},
		"with an empty credential":   {Name: "x", Credential: &errandv1.RegistryCredential{}},
		"with two kinds of secret":   {Name: "x", Credential: &errandv1.RegistryCredential{Password: "hunter2", IdentityToken: "hunter2"}},
		"with a credential too long": {Name: "x", Credential: &errandv1.RegistryCredential{Password: strings.Repeat("hunter2", 8000)}},
	} {
		t.Run(name+" is refused", func(t *testing.T) {
			_, err := pull(request)
			wantCode(t, err, codes.InvalidField)
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error repeats the secret: %v", err)
			}
		})
	}
	for class, code := range map[records.Class]codes.Code{
		records.ClassNotFound: codes.ImageNotFound, records.ClassUnavailable: codes.ImagePull,
		records.ClassInvalid: codes.InvalidField, records.ClassDeadline: codes.Deadline,
	} {
		t.Run("that fails says "+string(code), func(t *testing.T) {
			stored.err = records.Errorf(class, "the registry says no")
			_, err := pull(&errandv1.PullImageRequest{Name: "x"})
			wantCode(t, err, code)
		})
	}
}

func TestRemoveOfAnImage(t *testing.T) {
	stored := &shelf{}
	r := newRig(t, func(config *api.Config) { config.Images = stored })
	response, err := r.images.Remove(r.ctx, &errandv1.RemoveImageRequest{Name: "x"})
	if err != nil || response.GetName() != "docker.io/library/x" {
		t.Errorf("got %v, %v", response, err)
	}
	stored.err = records.Errorf(records.ClassConflict, "a sandbox is made of it")
	_, err = r.images.Remove(r.ctx, &errandv1.RemoveImageRequest{Name: "x"})
	wantCode(t, err, codes.ImageInUse)
	_, err = r.images.Remove(r.ctx, &errandv1.RemoveImageRequest{})
	wantCode(t, err, codes.InvalidField)
	none := newRig(t)
	_, err = none.images.Remove(none.ctx, &errandv1.RemoveImageRequest{Name: "x"})
	wantCode(t, err, codes.NoImages)
	stream, err := none.images.Pull(none.ctx, &errandv1.PullImageRequest{Name: "x"})
	if err == nil {
		stream.Receive()
		err = stream.Err()
	}
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("got %v", err)
	}
}

func TestPullsAreShownWithTheNodeThatAnswers(t *testing.T) {
	r := newRig(t, func(config *api.Config) { config.Pulls, config.Node = pulls{}, "n1" })
	for _, node := range []string{"n1", "n2"} {
		r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: r.keys.Node(node), Value: nil}}})
		got, err := r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: node})
		if err != nil || (len(got.GetPulls()) == 1) != (node == "n1") {
			t.Errorf("%s: %v, %v", node, got, err)
		}
	}
}
