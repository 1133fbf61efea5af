package containerd

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestUnansweredIsTheCauseAlone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wrapped := func(why string) error {
		return status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix://`+socket+": "+why+`"`)
	}
	for name, c := range map[string]struct {
		address, want string
		err           error
	}{
		"no socket":  {socket + "-no", "no such file or directory", wrapped("timeout")},
		"refused":    {socket, "connection refused", wrapped("connect: connection refused")},
		"silent":     {socket, "timeout", wrapped("timeout")},
		"other text": {socket, "not now", status.Error(codes.Unavailable, "not now")},
	} {
		if got := unanswered(c.address, c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
