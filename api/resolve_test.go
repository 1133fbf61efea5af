package api

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

var allDrivers = []string{"containerd", "process", "null"}

const testNowMs = 1_700_000_000_123

func validRequest() *errandv1.CreateRunRequest {
	return &errandv1.CreateRunRequest{
		App: "web", Name: "nightly report", Labels: map[string]string{"team": "a b"},
		Spec: &errandv1.RunSpec{
			Image: "busybox", Command: []string{"sh", "-c", "true"},
			Env: map[string]string{"B": "2", "A": "1=x", "A_B": ""},
		},
		IdempotencyKey: "key-1",
	}
}

func TestResolveFillsInTheDefaultsOfTheContract(t *testing.T) {
	request := &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Image: "busybox", Env: map[string]string{"B": "2", "A": "1=x", "A_B": ""}}}
	got, violations := resolve(request, allDrivers, testNowMs)
	if len(violations) > 0 {
		t.Fatal(violations)
	}
	want := &recordv1.Run{
		App: "default", Trigger: recordv1.Trigger_TRIGGER_API, Status: recordv1.Status_STATUS_PENDING,
		CreatedAt: testNowMs, QueuedAt: testNowMs, Attempt: 1, MinWriter: records.FirstWriter,
		Spec: &recordv1.Spec{
			Driver: "containerd", Image: "busybox", Env: []string{"A=1=x", "A_B=", "B=2"},
			TimeoutMs: 8 * 3600 * 1000, StartDeadlineMs: 5 * 60 * 1000, StopGraceMs: 10 * 1000,
		},
	}
	if !proto.Equal(got.run, want) {
		t.Errorf("got %v\nwant %v", got.run, want)
	}
}

// withSpec and friends name what a case changes.
func withSpec(change func(*errandv1.RunSpec)) func(*errandv1.CreateRunRequest) {
	return func(r *errandv1.CreateRunRequest) { change(r.Spec) }
}

func manyLabels(n int) map[string]string {
	labels := map[string]string{}
	for i := range n {
		labels["k"+strings.Repeat("x", i%8)+string(rune('a'+i%26))+string(rune('a'+i/26))] = strings.Repeat("v", 250)
	}
	return labels
}

func TestResolveRefusesARequestAndNamesTheField(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	cases := []struct {
		name   string
		change func(*errandv1.CreateRunRequest)
		want   string
	}{
		{"no spec", func(r *errandv1.CreateRunRequest) { r.Spec = nil }, "spec: is missing"},
		{"app in capitals", func(r *errandv1.CreateRunRequest) { r.App = "Web" }, "app: a name is 1 to 63"},
		{"app with a slash", func(r *errandv1.CreateRunRequest) { r.App = "a/b" }, "app: a name is"},
		{"name with a newline", func(r *errandv1.CreateRunRequest) { r.Name = "a\nb" }, "name: may only hold printable"},
		{"name not UTF-8", func(r *errandv1.CreateRunRequest) { r.Name = "a\xff" }, "name: may only hold printable"},
		{"name of 129", func(r *errandv1.CreateRunRequest) { r.Name = long(129) }, "name: is 129 characters long, the most is 128"},
		{"label key with a space", func(r *errandv1.CreateRunRequest) { r.Labels = map[string]string{"a b": ""} }, `labels["a b"]: a key is letters`},
		{"label key empty", func(r *errandv1.CreateRunRequest) { r.Labels = map[string]string{"": "x"} }, `labels[""]: a key is letters`},
		{"label key too long", func(r *errandv1.CreateRunRequest) { r.Labels = map[string]string{long(64): ""} }, "]: the key is 64 bytes long"},
		{"label key reserved", func(r *errandv1.CreateRunRequest) { r.Labels = map[string]string{"errand/node": ""} }, "are Errand's own"},
		{"label value too long", func(r *errandv1.CreateRunRequest) { r.Labels = map[string]string{"a": long(256)} }, `labels["a"]: the value is 256 bytes long`},
		{"label value with a tab", func(r *errandv1.CreateRunRequest) { r.Labels = map[string]string{"a": "\t"} }, `labels["a"]: the value may only`},
		{"65 labels", func(r *errandv1.CreateRunRequest) { r.Labels = manyLabels(65) }, "labels: are 65, the most is 64"},
		{"labels too large in all", func(r *errandv1.CreateRunRequest) { r.Labels = manyLabels(64) }, "labels: are 1"},
		{"trigger of schedules", func(r *errandv1.CreateRunRequest) { r.Trigger = errandv1.Trigger_TRIGGER_SCHEDULE }, "trigger: SCHEDULE is kept"},
		{"trigger unknown", func(r *errandv1.CreateRunRequest) { r.Trigger = 77 }, "trigger: must be MANUAL"},
		{"key too long", func(r *errandv1.CreateRunRequest) { r.IdempotencyKey = long(256) }, "idempotency_key: is 256 bytes long"},
		{"key not UTF-8", func(r *errandv1.CreateRunRequest) { r.IdempotencyKey = "\xff" }, "idempotency_key: is not UTF-8"},
		{"driver unknown", withSpec(func(s *errandv1.RunSpec) { s.Driver = "vm" }), `spec.driver: "vm" is not enabled here; enabled: containerd, process, null`},
		{"image missing", withSpec(func(s *errandv1.RunSpec) { s.Image = "" }), "spec.image: is missing"},
		{"image in capitals", withSpec(func(s *errandv1.RunSpec) { s.Image = "BusyBox" }), `spec.image: "BusyBox" is not an image name`},
		{"image with a space", withSpec(func(s *errandv1.RunSpec) { s.Image = "busy box" }), "spec.image: "},
		{"image too long", withSpec(func(s *errandv1.RunSpec) { s.Image = long(513) }), "spec.image: is 513 bytes long"},
		{"image for the process driver", withSpec(func(s *errandv1.RunSpec) { s.Driver = "process" }), "spec.image: the process driver"},
		{"image for the process driver says what to do", withSpec(func(s *errandv1.RunSpec) { s.Driver = "process" }), "leave it out, or ask for the containerd driver"},
		{"pull policy unknown", withSpec(func(s *errandv1.RunSpec) { s.Pull = 9 }), "spec.pull: must be MISSING, ALWAYS or NEVER, is 9"},
		{"pull policy for the null driver", withSpec(func(s *errandv1.RunSpec) { s.Driver, s.Pull = "null", errandv1.PullPolicy_PULL_POLICY_ALWAYS }), "spec.pull: the null driver uses no image"},
		{"read-only root with the process driver", withSpec(func(s *errandv1.RunSpec) { s.Driver, s.Image, s.ReadOnlyRoot = "process", "", true }), "spec.read_only_root: the process driver has no root file system"},
		{"read-only root with the null driver", withSpec(func(s *errandv1.RunSpec) { s.Driver, s.ReadOnlyRoot = "null", true }), "spec.read_only_root: the null driver"},
		{"pids below 0", withSpec(func(s *errandv1.RunSpec) { s.PidsLimit = -1 }), "spec.pids_limit: must not be below 0, is -1"},
		{"process without a command", withSpec(func(s *errandv1.RunSpec) { s.Driver, s.Image, s.Command = "process", "", nil }), "spec.command: is missing"},
		{"command begins empty", withSpec(func(s *errandv1.RunSpec) { s.Command = []string{""} }), "spec.command[0]: is empty"},
		{"command with a zero byte", withSpec(func(s *errandv1.RunSpec) { s.Command = []string{"a", "b\x00"} }), "spec.command[1]: holds a zero byte"},
		{"command not UTF-8", withSpec(func(s *errandv1.RunSpec) { s.Command = []string{"a", "\xff"} }), "spec.command[1]: is not UTF-8"},
		{"command part too long", withSpec(func(s *errandv1.RunSpec) { s.Command = []string{"a", long(128 << 10)} }), "spec.command[1]: is 131072 bytes long, the most is 131071"},
		{"command too long", withSpec(func(s *errandv1.RunSpec) { s.Command = []string{long(70 << 10), long(70 << 10)} }), "spec.command: is 143360 bytes in all"},
		{"4097 parts", withSpec(func(s *errandv1.RunSpec) { s.Command = slices.Repeat([]string{"a"}, 4097) }), "spec.command: has 4097 parts"},
		{"env key with a dash", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"A-B": "x"} }), `spec.env["A-B"]: a key is letters`},
		{"env key with an equals sign", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"A=B": "x"} }), `spec.env["A=B"]: a key is`},
		{"env key that begins with a digit", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"1A": "x"} }), `spec.env["1A"]: a key is`},
		{"env key with a newline at its end", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"A\n": "x"} }), `spec.env["A\n"]: a key is`},
		{"env key empty", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"": "x"} }), `spec.env[""]: a key is`},
		{"env key too long", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{long(257): "x"} }), "the key is 257 bytes long"},
		{"env key reserved", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"ERRAND_RUN": "x"} }), `spec.env["ERRAND_RUN"]: keys that begin with ERRAND_`},
		{"env value with a zero byte", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"A": "x\x00"} }), `spec.env["A"]: holds a zero byte`},
		{"env value of 10 MB", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"BIG": long(10 << 20)} }), `spec.env["BIG"]: is 10485765 bytes with its key, the most is 131072`},
		{"env too large in all", withSpec(func(s *errandv1.RunSpec) {
			s.Env = map[string]string{"A": long(130000), "B": long(130000), "C": long(130000), "D": long(130000), "E": long(130000)}
		}), "spec.env: is 650015 bytes in all, the most is 524288"},
		{"relative working directory", withSpec(func(s *errandv1.RunSpec) { s.WorkingDir = "tmp" }), `spec.working_dir: must be an absolute path, is "tmp"`},
		{"working directory too long", withSpec(func(s *errandv1.RunSpec) { s.WorkingDir = "/" + long(4095) }), "spec.working_dir: is 4096 bytes long"},
		{"user with two colons", withSpec(func(s *errandv1.RunSpec) { s.User = "a:b:c" }), `spec.user: must be uid`},
		{"user below 0", withSpec(func(s *errandv1.RunSpec) { s.User = "-1" }), "spec.user: must be uid"},
		{"user too high", withSpec(func(s *errandv1.RunSpec) { s.User = "4294967295" }), "spec.user: must be uid"},
		{"user without a group", withSpec(func(s *errandv1.RunSpec) { s.User = "1:" }), "spec.user: must be uid"},
		{"cpu below 0", withSpec(func(s *errandv1.RunSpec) { s.CpuMillis = -1 }), "spec.cpu_millis: must not be below 0, is -1m"},
		{"cpu too low", withSpec(func(s *errandv1.RunSpec) { s.CpuMillis = 9 }), "spec.cpu_millis: must be at least 10m, or 0 for no limit of its own, is 9m"},
		{"memory below 0", withSpec(func(s *errandv1.RunSpec) { s.MemoryBytes = -5 }), "spec.memory_bytes: must not be below 0, is -5 bytes"},
		{"memory too low", withSpec(func(s *errandv1.RunSpec) { s.MemoryBytes = 6<<20 - 1 }), "spec.memory_bytes: must be at least 6 MiB, or 0 for no limit of its own, is 6291455 bytes"},
		{"memory too high", withSpec(func(s *errandv1.RunSpec) { s.MemoryBytes = 2 << 50 }), "spec.memory_bytes: must be at most 1024 TiB, is 2048 TiB"},
		{"pids too high", withSpec(func(s *errandv1.RunSpec) { s.PidsLimit = 1<<22 + 1 }), "spec.pids_limit: must be at most"},
		{"timeout below 0", withSpec(func(s *errandv1.RunSpec) { s.Timeout = durationpb.New(-5 * time.Second) }), "spec.timeout: must be above 0, is -5s"},
		{"timeout of 0", withSpec(func(s *errandv1.RunSpec) { s.Timeout = durationpb.New(0) }), "spec.timeout: must be above 0, is 0s"},
		{"timeout of centuries", withSpec(func(s *errandv1.RunSpec) { s.Timeout = &durationpb.Duration{Seconds: 1 << 33} }), "spec.timeout: must be at most 8784h0m0s"},
		{"timeout that is no duration", withSpec(func(s *errandv1.RunSpec) { s.Timeout = &durationpb.Duration{Seconds: 1, Nanos: -1} }), "spec.timeout: is not a duration"},
		{"start deadline of 0", withSpec(func(s *errandv1.RunSpec) { s.StartDeadline = durationpb.New(0) }), "spec.start_deadline: must be above 0"},
		{"stop grace below 0", withSpec(func(s *errandv1.RunSpec) { s.StopGrace = durationpb.New(-time.Second) }), "spec.stop_grace: must not be below 0, is -1s"},
		{"all of it too large", withSpec(func(s *errandv1.RunSpec) {
			s.Env = map[string]string{}
			for i := range 4096 {
				s.Env["K_"+strconv.Itoa(i)] = long(120)
			}
			s.Command = slices.Repeat([]string{long(32)}, 4096)
		}), "spec: is 6"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			request := validRequest()
			c.change(request)
			_, violations := resolve(request, allDrivers, testNowMs)
			var texts []string
			for _, violation := range violations {
				texts = append(texts, violation.Field+": "+violation.Text)
			}
			if text := strings.Join(texts, "; "); !strings.Contains(text, c.want) || len(text) > 4096 {
				t.Errorf("got %.300q, want it to hold %q", text, c.want)
			}
		})
	}
}

func TestResolveTakesWhatIsAtItsBounds(t *testing.T) {
	cases := []struct {
		name   string
		change func(*errandv1.CreateRunRequest)
	}{
		{"everything plain", func(*errandv1.CreateRunRequest) {}},
		{"name of 128 runes", func(r *errandv1.CreateRunRequest) { r.Name = strings.Repeat("ü", 128) }},
		{"no name", func(r *errandv1.CreateRunRequest) { r.Name = "" }},
		{"user and group by number", withSpec(func(s *errandv1.RunSpec) { s.User = "0:4294967294" })},
		{"user and group by name", withSpec(func(s *errandv1.RunSpec) { s.User = "www-data:adm" })},
		{"image by digest", withSpec(func(s *errandv1.RunSpec) { s.Image = "localhost:5000/a/b@sha256:" + strings.Repeat("a", 64) })},
		{"image by tag and digest", withSpec(func(s *errandv1.RunSpec) { s.Image = "a/b:tag@sha256:" + strings.Repeat("a", 64) })},
		{"least memory", withSpec(func(s *errandv1.RunSpec) { s.MemoryBytes = 6 << 20 })},
		{"one process", withSpec(func(s *errandv1.RunSpec) { s.PidsLimit = 1 })},
		{"read-only root in a container", withSpec(func(s *errandv1.RunSpec) { s.ReadOnlyRoot = true })},
		{"longest value", withSpec(func(s *errandv1.RunSpec) { s.Env = map[string]string{"A": strings.Repeat("x", 128<<10-3)} })},
		{"image's own command", withSpec(func(s *errandv1.RunSpec) { s.Command = nil })},
		{"empty arguments", withSpec(func(s *errandv1.RunSpec) { s.Command = []string{"a", "", ""} })},
		{"shortest timeout", withSpec(func(s *errandv1.RunSpec) { s.Timeout = &durationpb.Duration{Nanos: 1} })},
		{"null driver without anything", withSpec(func(s *errandv1.RunSpec) { s.Driver, s.Image, s.Command = "null", "", nil })},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			request := validRequest()
			c.change(request)
			got, violations := resolve(request, allDrivers, testNowMs)
			if len(violations) > 0 {
				t.Fatal(violations)
			}
			if got.run.GetSpec().GetTimeoutMs() < 1 {
				t.Errorf("a timeout of %d ms means none", got.run.GetSpec().GetTimeoutMs())
			}
		})
	}
}

func TestResolveNeverShowsAnEnvironmentValue(t *testing.T) {
	const secret = "hunter2-very-secret"
	request := validRequest()
	request.Spec.Env = map[string]string{"A-B": secret, "C": secret + "\x00", "D": secret + "\xff", "ERRAND_X": secret, "E": strings.Repeat(secret, 10000)}
	_, violations := resolve(request, allDrivers, testNowMs)
	if len(violations) < 5 {
		t.Fatalf("%d violations: %v", len(violations), violations)
	}
	if err := invalid(violations); strings.Contains(err.Error(), secret) {
		t.Errorf("the error shows a value: %s", err)
	}
}

func TestRequestHashTellsRequestsApartButNotTheirKeys(t *testing.T) {
	hash := func(change func(*errandv1.CreateRunRequest)) []byte {
		request := validRequest()
		change(request)
		got, violations := resolve(request, allDrivers, testNowMs)
		if len(violations) > 0 {
			t.Fatal(violations)
		}
		return got.hash
	}
	base := hash(func(*errandv1.CreateRunRequest) {})
	same := map[string]func(*errandv1.CreateRunRequest){
		"another key":             func(r *errandv1.CreateRunRequest) { r.IdempotencyKey = "other" },
		"the default spelled out": func(r *errandv1.CreateRunRequest) { r.Trigger = errandv1.Trigger_TRIGGER_API },
	}
	for name, change := range same {
		if !bytes.Equal(base, hash(change)) {
			t.Errorf("%s: another hash", name)
		}
	}
	different := map[string]func(*errandv1.CreateRunRequest){
		"name":    func(r *errandv1.CreateRunRequest) { r.Name = "x" },
		"labels":  func(r *errandv1.CreateRunRequest) { r.Labels["x"] = "y" },
		"env":     func(r *errandv1.CreateRunRequest) { r.Spec.Env["A"] = "2" },
		"command": func(r *errandv1.CreateRunRequest) { r.Spec.Command = []string{"sh -c", "true"} },
		"timeout": func(r *errandv1.CreateRunRequest) { r.Spec.Timeout = durationpb.New(time.Hour) },
	}
	for name, change := range different {
		if bytes.Equal(base, hash(change)) {
			t.Errorf("%s: the same hash", name)
		}
	}
}

// TestSpecShownIsTheSpecAskedFor goes from a request to a record and back.
func TestSpecShownIsTheSpecAskedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		driver, image, readOnly := "null", rapid.SampledFrom([]string{"", "busybox", "a.b/c:d"}).Draw(t, "image"), false
		if rapid.Bool().Draw(t, "in a container") {
			driver, image, readOnly = "containerd", "busybox", rapid.Bool().Draw(t, "read only")
		}
		spec := &errandv1.RunSpec{
			Driver:        driver,
			Image:         image,
			Command:       rapid.SliceOfN(rapid.StringMatching(`[a-z =]{1,8}`), 0, 4).Draw(t, "command"),
			Env:           rapid.MapOfN(rapid.StringMatching(`[A-Z_][A-Z0-9_]{0,6}`), rapid.StringMatching(`[a-z=\n]{0,8}`), 0, 6).Draw(t, "env"),
			WorkingDir:    rapid.SampledFrom([]string{"", "/", "/tmp"}).Draw(t, "dir"),
			User:          rapid.SampledFrom([]string{"", "0", "a:b"}).Draw(t, "user"),
			CpuMillis:     rapid.Int64Range(10, 5000).Draw(t, "cpu"),
			ReadOnlyRoot:  readOnly,
			Timeout:       durationpb.New(time.Duration(rapid.Int64Range(1, 1e6).Draw(t, "timeout")) * time.Millisecond),
			StartDeadline: durationpb.New(time.Second),
			StopGrace:     durationpb.New(time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "grace")) * time.Millisecond),
		}
		got, violations := resolve(&errandv1.CreateRunRequest{Spec: spec}, allDrivers, testNowMs)
		if len(violations) > 0 {
			t.Fatal(violations)
		}
		shown := publicSpec(got.run.GetSpec())
		if !proto.Equal(shown, spec) {
			t.Fatalf("asked for %v\nshown %v", spec, shown)
		}
	})
}

func FuzzResolve(f *testing.F) {
	add := func(request *errandv1.CreateRunRequest) {
		data, err := proto.Marshal(request)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	add(validRequest())
	add(&errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Driver: "process", Command: []string{"true"}, User: "1:1", WorkingDir: "/"}})
	f.Fuzz(func(t *testing.T, data []byte) {
		request := &errandv1.CreateRunRequest{}
		if proto.Unmarshal(data, request) != nil {
			return
		}
		got, violations := resolve(request, allDrivers, testNowMs)
		if len(violations) > 0 {
			if err := invalid(violations); len(err.Message()) > 16<<10 || len(err.Details()) != 1 {
				t.Fatalf("an error of %d bytes with %d details", len(err.Message()), len(err.Details()))
			}
			return
		}
		spec := got.run.GetSpec()
		if proto.Size(spec) > specBytesMax || spec.GetTimeoutMs() < 1 || spec.GetStartDeadlineMs() < 1 || spec.GetStopGraceMs() < 0 {
			t.Fatalf("taken: %v", spec)
		}
		if !maps.Equal(publicSpec(spec).GetEnv(), request.GetSpec().GetEnv()) {
			t.Fatalf("the environment changed: %v", spec.GetEnv())
		}
		records.Encode(got.run) // panics on what is not UTF-8
	})
}
