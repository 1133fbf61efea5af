package images_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private/privatetest"
)

func TestMain(m *testing.M) { privatetest.Main(m) }

var namespaces int

// fresh returns a store in a containerd namespace of its own.
func fresh(t *testing.T, config images.Config) (*images.Store, *containerd.Client) {
	t.Helper()
	address := privatetest.Address(t)
	namespaces++
	client, err := containerd.New(address, containerd.WithDefaultNamespace(fmt.Sprintf("images-%d", namespaces)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	store := images.New(client, config)
	t.Cleanup(store.Close) // before the client's
	return store, client
}

func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func archive(t *testing.T, image imagetest.Image) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := imagetest.Write(&out, image); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// noise does not compress, so that a cut or a wrong byte hits the layer.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func small(name string) imagetest.Image {
	return imagetest.Image{
		Name: name, Bare: true,
		Files:  []imagetest.File{{Path: "hello", Content: noise(50_000), Mode: 0o644}},
		Config: v1.Config{Env: []string{"A=b"}, WorkingDir: "/work", User: "7:8", Entrypoint: []string{"/hello"}, Cmd: []string{"you"}},
	}
}

func TestImportListsTheImageAndDescribesIt(t *testing.T) {
	store, client := fresh(t, images.Config{})
	ctx := shortly(t)
	got, err := store.Import(ctx, "", bytes.NewReader(archive(t, small("tiny:1"))))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Name != "docker.io/library/tiny:1" || !strings.HasPrefix(got[0].Digest, "sha256:") || got[0].SizeBytes == 0 || time.Since(got[0].Imported) > time.Minute {
		t.Errorf("Import returned %+v", got)
	}
	list, err := store.List(ctx)
	if err != nil || len(list) != 1 || list[0] != got[0] {
		t.Errorf("List returned %+v, %v, not %+v", list, err, got)
	}
	details, err := store.Describe(ctx, "docker.io/library/tiny:1")
	if err != nil {
		t.Fatal(err)
	}
	if details.Config.User != "7:8" || details.Config.WorkingDir != "/work" || details.ChainID == "" {
		t.Errorf("Describe returned %+v", details)
	}
	if _, err := client.SnapshotService("overlayfs").Stat(ctx, details.ChainID); err != nil {
		t.Errorf("the image is not unpacked: %v", err)
	}
	again, err := store.Describe(ctx, "docker.io/library/tiny:1")
	if err != nil || again.ChainID != details.ChainID {
		t.Errorf("the second Describe: %+v, %v", again, err)
	}
}

func TestImportOfATagThatMovedDescribesTheNewImage(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	ctx := shortly(t)
	image := small("tiny:1")
	for _, user := range []string{"1", "2"} {
		image.Config.User = user
		if _, err := store.Import(ctx, "", bytes.NewReader(archive(t, image))); err != nil {
			t.Fatal(err)
		}
		details, err := store.Describe(ctx, "docker.io/library/tiny:1")
		if err != nil || details.Config.User != user {
			t.Errorf("user %q, %v; not %q", details.Config.User, err, user)
		}
	}
}

func TestImportReadsGzip(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	if _, err := store.Import(shortly(t), "", bytes.NewReader(packed(t, archive(t, small("tiny:1"))))); err != nil {
		t.Error(err)
	}
}

func packed(t *testing.T, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// rewrite puts the archives of one image each into one, under other tags.
func rewrite(t *testing.T, tags [][]string, archives ...[]byte) []byte {
	t.Helper()
	var manifest []map[string]any
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put := func(header *tar.Header, content []byte) {
		header.Size = int64(len(content))
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	written := map[string]bool{}
	for i, one := range archives {
		for r := tar.NewReader(bytes.NewReader(one)); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if header.Name == "manifest.json" {
				var own []map[string]any
				if err := json.Unmarshal(content, &own); err != nil {
					t.Fatal(err)
				}
				own[0]["RepoTags"] = tags[i]
				manifest = append(manifest, own[0])
			} else if !written[header.Name] {
				written[header.Name] = true
				put(header, content)
			}
		}
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	put(&tar.Header{Name: "manifest.json", Mode: 0o644}, content)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// entry is a tar of one file.
func entry(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestImportListsEachNameOnce(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	twice := rewrite(t, [][]string{{"tiny:1", "tiny:1", "tiny:2"}}, archive(t, small("tiny:1")))
	got, err := store.Import(shortly(t), "", bytes.NewReader(twice))
	if err != nil || len(got) != 2 || got[0].Name != "docker.io/library/tiny:1" || got[1].Name != "docker.io/library/tiny:2" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestImportUnderANameReplacesAllNamesOfTheOneImage(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	tagged := rewrite(t, [][]string{{"tiny:1", "tiny:2"}}, archive(t, small("tiny:1")))
	got, err := store.Import(shortly(t), "mine", bytes.NewReader(tagged))
	if err != nil || len(got) != 1 || got[0].Name != "docker.io/library/mine:latest" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestImportGivesTheNameThatWasAskedFor(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	got, err := store.Import(shortly(t), "other", bytes.NewReader(archive(t, small("tiny:1"))))
	if err != nil || got[0].Name != "docker.io/library/other:latest" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Each of these is refused for good, and nothing of it stays.
func TestImportOfWhatIsNoImageLeavesNothing(t *testing.T) {
	whole := archive(t, small("tiny:1"))
	corrupt := bytes.Clone(whole)
	at := bytes.Index(corrupt, []byte(".tar.gz")) + 700
	for i := range 64 {
		corrupt[at+i] ^= 0xff
	}
	second := small("tiny:1")
	second.Config.User = "9"
	other := archive(t, second)
	zeros := small("tiny:1")
	zeros.Files[0].Content = make([]byte, 16<<20)
	cases := map[string]struct {
		archive       []byte
		name          string
		max, unpacked int64
		say           string
	}{
		"empty":                 {archive: nil, say: "cut short"},
		"text":                  {archive: []byte(strings.Repeat("not an archive\n", 100)), say: "not an archive of docker or OCI images"},
		"short text":            {archive: []byte("x"), say: "cut short"},
		"cut in its middle":     {archive: whole[:len(whole)/2], say: "cut short"},
		"cut at a record":       {archive: whole[:1024], say: "it can not be taken in"},
		"a gzip that is none":   {archive: []byte{0x1f, 0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0}, say: "not an archive"},
		"a layer that is wrong": {archive: corrupt, say: "a layer of it is damaged"},
		"too large":             {archive: whole, max: 1000, say: "more than 1000 bytes"},
		"an impossible name":    {archive: whole, name: "UPPER CASE", say: "not an image name"},
		"no name":               {archive: rewrite(t, [][]string{nil}, whole), say: "give it one with --name"},
		"a name for two images": {archive: rewrite(t, [][]string{{"tiny:1"}, {"other:1"}}, whole, other), name: "mine", say: "holds several images"},
		"one name for two":      {archive: rewrite(t, [][]string{{"tiny:1"}, {"tiny:1"}}, whole, other), say: "names two images docker.io/library/tiny:1"},
		"a layer of zeros":      {archive: archive(t, zeros), unpacked: 1 << 20, say: "unpacks to more than"},
		"zeros in its gzip":     {archive: packed(t, entry(t, "layer.tar", make([]byte, 16<<20))), unpacked: 1 << 20, say: "unpacks to more than"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			store, client := fresh(t, images.Config{ArchiveBytesMax: tc.max, UnpackedBytesMin: tc.unpacked})
			ctx := shortly(t)
			_, err := store.Import(ctx, tc.name, bytes.NewReader(tc.archive))
			if records.ClassOf(err) != records.ClassInvalid || !strings.Contains(err.Error(), tc.say) || strings.HasPrefix(err.Error(), "import") {
				t.Errorf("got class %v: %v", records.ClassOf(err), err)
			}
			expectNothing(t, client)
		})
	}
}

func TestImportWhoseSenderFailsReturnsTheSendersError(t *testing.T) {
	store, client := fresh(t, images.Config{})
	gone := errors.New("the caller is gone")
	whole := archive(t, small("tiny:1"))
	_, err := store.Import(shortly(t), "", io.MultiReader(bytes.NewReader(whole[:len(whole)/2]), iotest.ErrReader(gone)))
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	expectNothing(t, client)
}

func expectNothing(t *testing.T, client *containerd.Client) {
	t.Helper()
	ctx := shortly(t)
	list, err := client.ImageService().List(ctx)
	if err != nil || len(list) != 0 {
		t.Errorf("images: %v, %v", list, err)
	}
	leased, err := client.LeasesService().List(ctx)
	if err != nil || len(leased) != 0 {
		t.Errorf("leases: %v, %v", leased, err)
	}
	if err := client.ContentStore().Walk(ctx, func(info content.Info) error {
		t.Errorf("blob %s is left", info.Digest)
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := client.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		t.Errorf("snapshot %s is left", info.Name)
		return nil
	}); err != nil {
		t.Error(err)
	}
	ingests, err := client.ContentStore().ListStatuses(ctx)
	if err != nil || len(ingests) != 0 {
		t.Errorf("ingests: %v, %v", ingests, err)
	}
}

func TestDescribeOfAnAbsentImageIsNotFound(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	_, err := store.Describe(shortly(t), "docker.io/library/absent:latest")
	if records.ClassOf(err) != records.ClassNotFound {
		t.Errorf("got class %v: %v", records.ClassOf(err), err)
	}
}

func TestNormalizeNamesImagesInFull(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	cases := map[string]string{
		"busybox":                "docker.io/library/busybox:latest",
		"busybox:1.36":           "docker.io/library/busybox:1.36",
		"me/tool":                "docker.io/me/tool:latest",
		"registry:5000/a/b:c":    "registry:5000/a/b:c",
		"busybox@" + digest:      "docker.io/library/busybox@" + digest,
		"":                       "",
		"UPPER":                  "",
		"a b":                    "",
		"-x":                     "",
		strings.Repeat("a", 600): "",
	}
	for name, want := range cases {
		got, err := images.Normalize(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q became %q, %v; not %q", name, got, err, want)
		}
	}
}

func FuzzNormalizeIsStable(f *testing.F) {
	for _, seed := range []string{"busybox", "a/b:c", "x@sha256:" + strings.Repeat("0", 64), "host:1/p"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		once, err := images.Normalize(name)
		if err != nil {
			return
		}
		if twice, err := images.Normalize(once); err != nil || twice != once {
			t.Errorf("%q became %q and then %q, %v", name, once, twice, err)
		}
	})
}
