package cli

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What comes out of a sandbox is its command's work: it may not choose where it is written.
func TestUnpackWritesNothingThroughALinkOfTheArchive(t *testing.T) {
	for name, entries := range map[string][]tar.Header{
		"a file in place of the link": {
			{Typeflag: tar.TypeSymlink, Name: "out/a", Linkname: "../mine"},
			{Typeflag: tar.TypeReg, Name: "out/a", Mode: 0o644, Size: 4},
		},
		"a file behind the link": {
			{Typeflag: tar.TypeSymlink, Name: "out/a", Linkname: ".."},
			{Typeflag: tar.TypeReg, Name: "out/a/mine", Mode: 0o644, Size: 4},
		},
		"a file above the directory": {{Typeflag: tar.TypeReg, Name: "../mine/../../mine", Mode: 0o644, Size: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mine := filepath.Join(dir, "mine")
			if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, "here"), 0o700); err != nil {
				t.Fatal(err)
			}
			to := dir
			if entries[0].Typeflag == tar.TypeReg {
				to = filepath.Join(dir, "here")
			}
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, header := range append([]tar.Header{{Typeflag: tar.TypeDir, Name: "out/", Mode: 0o755}}, entries...) {
				if err := w.WriteHeader(&header); err != nil {
					t.Fatal(err)
				}
				if header.Size > 0 {
					if _, err := w.Write([]byte("evil")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			err := unpack(&archive, to, "")
			if content, readErr := os.ReadFile(mine); string(content) != "mine" {
				t.Errorf("the file beside it holds %q, %v; unpacking gave %v", content, readErr, err)
			}
		})
	}
}
