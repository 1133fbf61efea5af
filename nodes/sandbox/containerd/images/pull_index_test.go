package images_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
)

func TestPullOfAnIndexTakesTheVariantForThisMachine(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	r := newRegistry(t, false)
	_, image := served(t, r, "a", 1000)
	file, _ := image.ConfigFile()
	foreign := file.DeepCopy()
	foreign.Architecture = "s390x"
	other, err := mutate.ConfigFile(image, foreign)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: file.Architecture}}})
	data, err := index.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := index.Digest()
	mediaType, _ := index.MediaType()
	r.AddManifest("a", "all", string(mediaType), digest.String(), data)
	got, err := store.Pull(shortly(t), images.PullRequest{Name: r.Name("a", "all")}, nil)
	if err != nil || got.Digest != digest.String() {
		t.Fatalf("got %+v, %v", got, err)
	}
	byDigest, err := store.Pull(shortly(t), images.PullRequest{Name: r.Host + "/a@" + digest.String()}, nil)
	if err != nil || byDigest.Digest != digest.String() {
		t.Errorf("by digest: %+v, %v", byDigest, err)
	}
}

// The platform of an entry is optional; the image's configuration has it too.
func TestPullOfAnIndexThatNamesNoMachine(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	r := newRegistry(t, false)
	_, image := served(t, r, "a", 1000)
	size, _ := image.Size()
	digest, _ := image.Digest()
	mediaType, _ := image.MediaType()
	index := fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":%q,"size":%d,"digest":%q}]}`, mediaType, size, digest)
	r.AddManifest("a", "all", "application/vnd.oci.image.index.v1+json", fmt.Sprintf("sha256:%x", sha256.Sum256(index)), index)
	if _, err := store.Pull(shortly(t), images.PullRequest{Name: r.Name("a", "all")}, nil); err != nil {
		t.Error(err)
	}
}
