package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/api/fakeapi"
	"github.com/errand-run/errand/cluster/freeport"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBadCommandLinesNameWhatIsWrong(t *testing.T) {
	// Nothing answers there: each must be refused before any call.
	i := newInvocation(t, "http://127.0.0.1:1")
	cases := map[string]struct {
		args []string
		want []string
	}{
		"negative timeout":            {[]string{"run", "--timeout", "-5s", "x"}, []string{"--timeout", "negative"}},
		"zero timeout":                {[]string{"run", "--timeout", "0", "x"}, []string{"--timeout", "above 0"}},
		"timeout without unit":        {[]string{"run", "--timeout", "5", "x"}, []string{"--timeout", "90s"}},
		"timeout beyond counting":     {[]string{"run", "--timeout", "99999999h", "x"}, []string{"--timeout", "too long: the most is 8784h"}},
		"start deadline too long":     {[]string{"run", "--start-deadline", "99999999h", "x"}, []string{"too long: the most is 8784h"}},
		"grace beyond counting":       {[]string{"run", "--stop-grace", "99999999h1m", "x"}, []string{"too long: the most is 24h"}},
		"wait beyond counting":        {[]string{"wait", "--timeout", "99999999h", "x"}, []string{"too long: the most is 2562047h"}},
		"relative workdir":            {[]string{"run", "-w", "rel", "x"}, []string{`--workdir "rel": must be an absolute path`}},
		"negative start deadline":     {[]string{"run", "--start-deadline", "-1s", "x"}, []string{"--start-deadline"}},
		"negative grace":              {[]string{"run", "--stop-grace", "-1s", "x"}, []string{"--stop-grace"}},
		"bad memory":                  {[]string{"run", "--memory", "lots", "x"}, []string{"--memory", "64MiB"}},
		"bad cpu":                     {[]string{"run", "--cpu", "-1", "x"}, []string{"--cpu", "500m"}},
		"bad label":                   {[]string{"run", "--label", "a", "x"}, []string{"--label", "key=value"}},
		"doubled label":               {[]string{"run", "--label", "a=1", "--label", "a=2", "x"}, []string{"--label a", "twice"}},
		"env without a name":          {[]string{"run", "--env", "=x", "x"}, []string{"--env", "NAME=VALUE"}},
		"env that is not set":         {[]string{"run", "--env", "NOPE", "x"}, []string{"--env NOPE", "not set"}},
		"missing env file":            {[]string{"run", "--env-file", "/nope", "x"}, []string{"--env-file /nope", "no such file"}},
		"env not UTF-8":               {[]string{"run", "--env", "A=\xff", "x"}, []string{"--env A", "UTF-8"}},
		"argument not UTF-8":          {[]string{"run", "x", "--", "\xff"}, []string{"argument 0", "UTF-8"}},
		"negative pids":               {[]string{"run", "--pids-limit", "-1", "x"}, []string{"--pids-limit"}},
		"no pids":                     {[]string{"run", "--pids-limit", "0", "x"}, []string{"--pids-limit 0", "1 or more"}},
		"pids in words":               {[]string{"run", "--pids-limit", "many", "x"}, []string{"--pids-limit", "flag: must be a whole number\n"}},
		"too many pids to count":      {[]string{"run", "--pids-limit", "99999999999999999999", "x"}, []string{"flag: is out of range\n"}},
		"read-only in words":          {[]string{"run", "--read-only=often", "x"}, []string{"flag: must be true or false\n"}},
		"empty key":                   {[]string{"run", "--idempotency-key", "", "x"}, []string{"--idempotency-key is empty"}},
		"no image":                    {[]string{"run"}, []string{"IMAGE", "errand run --help"}},
		"command without dashes":      {[]string{"run", "busybox", "ls"}, []string{"errand run busybox -- ls"}},
		"flags without dashes":        {[]string{"run", "busybox", "ls", "-l"}, []string{"-l", "--, as in"}},
		"image with process":          {[]string{"run", "--driver", "process", "ls"}, []string{"no image", "-- ls"}},
		"process without command":     {[]string{"run", "--driver", "process"}, []string{"wants a command"}},
		"empty command":               {[]string{"run", "busybox", "--", ""}, []string{"command is empty"}},
		"unknown flag":                {[]string{"runs", "--nope"}, []string{"--nope", "errand runs --help"}},
		"unknown command":             {[]string{"rums"}, []string{"rums", "runs"}},
		"unknown subcommand":          {[]string{"image", "imprt"}, []string{"errand image import"}},
		"unknown node command":        {[]string{"node", "rn"}, []string{"errand node", "rn"}},
		"help on nothing":             {[]string{"help", "rums"}, []string{"rums", "errand --help"}},
		"help on no image command":    {[]string{"help", "image", "imprt"}, []string{"errand image import"}},
		"completion of no shell":      {[]string{"completion", "tcsh"}, []string{"tcsh", "errand completion --help"}},
		"version of something":        {[]string{"--version", "runz"}, []string{"runz"}},
		"unknown output":              {[]string{"runs", "-o", "xml"}, []string{"--output", "table, json or yaml"}},
		"unknown status":              {[]string{"runs", "--status", "DONE"}, []string{"--status", "SUCCEEDED"}},
		"negative limit":              {[]string{"runs", "--limit", "-1"}, []string{"--limit"}},
		"runs with an argument":       {[]string{"runs", "x"}, []string{"no arguments"}},
		"show without a run":          {[]string{"show"}, []string{"which RUN"}},
		"show with two":               {[]string{"show", "a", "b"}, []string{"one RUN"}},
		"empty id":                    {[]string{"cancel", ""}, []string{"empty"}},
		"bad tail":                    {[]string{"logs", "--tail", "0", "x"}, []string{"--tail 0: must be 1 to 2147483647"}},
		"bad since":                   {[]string{"logs", "--since", "yesterday", "x"}, []string{"--since", "10m"}},
		"bad stream":                  {[]string{"logs", "--stream", "out", "x"}, []string{"--stream", "stdout or stderr"}},
		"bad attempt":                 {[]string{"logs", "--attempt", "-1", "x"}, []string{"--attempt"}},
		"negative wait":               {[]string{"wait", "--timeout", "-1s", "x"}, []string{"--timeout", "negative"}},
		"import without an archive":   {[]string{"image", "import"}, []string{"busybox.tar"}},
		"import of nothing":           {[]string{"image", "import", "/nope.tar"}, []string{"/nope.tar", "no such file"}},
		"import of a directory":       {[]string{"image", "import", "/"}, []string{"directory"}},
		"missing token file":          {[]string{"runs", "--token-file", "/nope"}, []string{"--token-file /nope", "no such file"}},
		"address without a host":      {[]string{"runs", "--address", "http://"}, []string{"--address", "http://127.0.0.1:7400"}},
		"address without such a port": {[]string{"--address", "127.0.0.1:99999", "run", "busybox"}, []string{"--address is not an address", "1 to 65535"}},
		"address of port 0":           {[]string{"--address", "localhost:0", "runs"}, []string{"--address is not an address"}},
		"address of another scheme":   {[]string{"runs", "--address", "unix:///x"}, []string{"--address"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { i.run(c.args...).wantError(t, ExitUsage, c.want...) })
	}
}

// Who forgot -- can copy the command line out of the hint: no word of it is lost, and no
// shell takes one for something else.
func TestHintAboutDashesKeepsAllWords(t *testing.T) {
	i := newInvocation(t, "http://127.0.0.1:1")
	for typed, hint := range map[string]string{
		"run busybox ls":                          "errand run busybox -- ls",
		"run busybox echo a b c":                  "errand run busybox -- echo a b c",
		"run busybox ls -- -l /tmp":               "errand run busybox -- ls -l /tmp",
		"run busybox sh -- -c|echo $HOME; exit 3": "errand run busybox -- sh -c 'echo $HOME; exit 3'",
		"run busybox echo|it's|{a,b}|[x]|!|":      `errand run busybox -- echo 'it'\''s' '{a,b}' '[x]' '!' ''`,
		"run --driver process ls":                 "errand run --driver process -- ls",
		"run --driver process echo a -- b -c":     "errand run --driver process -- echo a b -c",
		"console busybox top":                     "errand console busybox -- top",
	} {
		t.Run(typed, func(t *testing.T) {
			words, rest, piped := strings.Cut(typed, "|")
			args := strings.Fields(words)
			if piped {
				args = append(args, strings.Split(rest, "|")...)
			}
			i.run(args...).wantError(t, ExitUsage, "Put -- before the command: "+hint+"\n")
		})
	}
}

func TestErrorsNeverRepeatSecrets(t *testing.T) {
	i := newInvocation(t, "http://127.0.0.1:1")
	file := writeFile(t, "env", "OK=1\nhunter2\n")
	for name, args := range map[string][]string{
		"value that is not text":     {"run", "--env", "A=hunter2\xff", "x"},
		"line without =":             {"run", "--env-file", file, "x"},
		"password in an address":     {"runs", "--address", "http://me:hunter2@host"},
		"token that is not one":      {"runs", "--token-file", writeFile(t, "token", "hunter2 hunter2")},
		"argument that is not text":  {"run", "x", "--", "hunter2\xff"},
		"unreachable with an env":    {"run", "--env", "A=hunter2", "x"},
		"unreachable with a command": {"run", "-o", "json", "x", "--", "hunter2"},
	} {
		t.Run(name, func(t *testing.T) {
			got := i.run(args...)
			if got.code == 0 || strings.Contains(got.stdout+got.stderr, "hunter2") {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestUnreachableNodeSaysWhichAddressWasTried(t *testing.T) {
	address, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	i := newInvocation(t, address)
	for _, args := range [][]string{
		{"run", "busybox"},
		{"run", "-d", "busybox"},
		{"runs"},
		{"show", "x"},
		{"logs", "x"},
		{"logs", "-f", "x"},
		{"wait", "x"},
		{"cancel", "x", "y"},
		{"node", "ls"},
		{"image", "ls"},
		{"image", "import", writeFile(t, "x.tar", "x")},
	} {
		t.Run(strings.Join(args[:1], " "), func(t *testing.T) {
			i.run(args...).wantError(t, ExitErrand, "http://"+address, "connection refused", "--address", "ERRAND_ADDRESS")
			got := i.run(append([]string{"-o", "json"}, args...)...)
			var document struct {
				Error struct{ Code, Message string }
			}
			if err := json.Unmarshal([]byte(got.stderr), &document); err != nil || document.Error.Code != string(codes.Unreachable) ||
				!strings.Contains(document.Error.Message, address) {
				t.Errorf("stderr %q is not the JSON of an unreachable node: %v", got.stderr, err)
			}
		})
	}
}

func TestAServerThatIsNoNodeIsNamed(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	newInvocation(t, other.URL).run("runs").wantError(t, ExitErrand, other.URL, "not as an Errand node")
}

func TestAddressAndTokenPrecedence(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Token = "right" })
	right, wrong := writeFile(t, "right", "right\n"), writeFile(t, "wrong", "hunter2\n")
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "api.token"), []byte("right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		environ []string
		args    []string
		code    int
		want    []string
	}{
		"variable before file": {[]string{"ERRAND_TOKEN=right"}, []string{"--token-file", wrong}, 0, nil},
		"file of the flag":     {[]string{"ERRAND_DATA=" + t.TempDir()}, []string{"--token-file", right}, 0, nil},
		"flag before data dir": {[]string{"ERRAND_DATA=" + data}, []string{"--token-file", wrong}, ExitErrand, []string{wrong, "ERRAND_TOKEN"}},
		"data dir":             {[]string{"ERRAND_DATA=" + data}, nil, 0, nil},
		"wrong variable":       {[]string{"ERRAND_TOKEN=hunter2"}, nil, ExitErrand, []string{"refused the token of ERRAND_TOKEN"}},
		"none":                 {[]string{"ERRAND_DATA=/nope"}, nil, ExitErrand, []string{"wants a token", "/nope/api.token: no such file"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			i := newInvocation(t, s.URL())
			i.environ = append([]string{"ERRAND_ADDRESS=http://127.0.0.1:1"}, c.environ...)
			got := i.run(append([]string{"runs", "-q", "--address", s.URL()}, c.args...)...)
			if got.code != c.code {
				t.Errorf("%+v", got)
			}
			for _, part := range c.want {
				if !strings.Contains(got.stderr, part) {
					t.Errorf("stderr %q does not have %q", got.stderr, part)
				}
			}
			if strings.Contains(got.stderr, "hunter2") {
				t.Errorf("the token is in %q", got.stderr)
			}
		})
	}
}

func TestWhatTheNodeRefusesIsAUsageError(t *testing.T) {
	s := startFake(t, nil)
	newInvocation(t, s.URL()).run("run", "--name", "a/b", "busybox").wantError(t, ExitUsage, "--name: has a character that is not allowed\n--env A: is bad\n")
	newInvocation(t, s.URL()).run("run", "-o", "json", "--name", "a/b", "busybox").wantError(t, ExitUsage, `"code":"INVALID_FIELD"`)
	if len(s.Runs()) != 0 {
		t.Error("a run was made")
	}
	newInvocation(t, s.URL()).run("show", "r.nope").wantError(t, ExitErrand, "r.nope", "errand runs")
}

func TestRefusalsOfACreationSayWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code int
		want []string
	}{
		"an image where the default driver takes none": {
			fakeapi.Fail(connect.CodeInvalidArgument, "INVALID_FIELD", "x", &errandv1.FieldViolation{
				Field: "spec.image", Text: "the process driver runs commands of the host and takes no image: leave it out",
			}), ExitUsage, []string{"IMAGE: the process driver", "--driver containerd", "--driver process -- COMMAND"},
		},
		"a limit that is too low": {
			fakeapi.Fail(connect.CodeInvalidArgument, "INVALID_FIELD", "x", &errandv1.FieldViolation{
				Field: "spec.memory_bytes", Text: "must be at least 6 MiB, or 0 for no limit of its own, is 1 byte",
			}), ExitUsage, []string{"errand: --memory: must be at least 6 MiB, is 1 byte"},
		},
		"a key that was used": {
			fakeapi.Fail(connect.CodeAlreadyExists, "IDEMPOTENCY_CONFLICT", "idempotency_key: was used for run k.default.x with another request"),
			ExitErrand,
			[]string{"errand: --idempotency-key: was used for run k.default.x"},
		},
		"a request that is too large": {
			fakeapi.Fail(connect.CodeResourceExhausted, "REQUEST_TOO_LARGE", "the request is larger than 1 bytes"),
			ExitUsage,
			[]string{"larger than 1 bytes"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startFake(t, func(s *fakeapi.Server) { s.CreateError = func() error { return c.err } })
			i := newInvocation(t, s.URL())
			i.run("run", "busybox", "--", "x").wantError(t, c.code, c.want...)
			i.run("run", "-d", "busybox", "--", "x").wantError(t, c.code, c.want...)
			if calls := s.Calls(errandv1connect.RunServiceCreateProcedure); calls != 2 {
				t.Errorf("%d calls for 2 creations", calls)
			}
		})
	}
}

func TestAddressOfAHostAloneMeansThePortOfANode(t *testing.T) {
	for given, want := range map[string]string{
		"":                       "http://127.0.0.1:7400",
		"127.0.0.1":              "http://127.0.0.1:7400",
		"node-7":                 "http://node-7:7400",
		"node-7:":                "http://node-7:7400",
		"node-7/prefix":          "http://node-7:7400/prefix",
		"node-7:80":              "http://node-7:80",
		"::1":                    "http://[::1]:7400",
		"[::1]":                  "http://[::1]:7400",
		"[::1]:80":               "http://[::1]:80",
		"https://errand.example": "https://errand.example",
		"http://127.0.0.1/":      "http://127.0.0.1",
	} {
		a := newApp(nil, nil, nil, []string{"ERRAND_ADDRESS=" + given, "ERRAND_TOKEN=token"})
		if c, err := a.connect(); err != nil || c.patient.Address() != want {
			t.Errorf("%q gives %v, %v; want %q", given, c, err, want)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer first.Close()
	i := newInvocation(t, first.URL)
	i.environ = append(i.environ, "ERRAND_TOKEN=hunter2")
	i.run("runs").wantError(t, ExitErrand, first.URL, "not as an Errand node")
	if reached.Load() {
		t.Error("the redirect was followed")
	}
}

func TestExecuteLeavesNoConnectionBehind(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = seventeen })
	before := goleak.IgnoreCurrent()
	newInvocation(t, s.URL()).run("run", "busybox").want(t, 17, "out\n", "err\n")
	goleak.VerifyNone(t, before)
}
