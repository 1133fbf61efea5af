package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What is said of Nomad and Dkron by their documentation, as far as the adapters go, and
// carried out: as a program, and within a test that compares the requests.

// documented answers like one of them.
type documented struct {
	mux      *http.ServeMux
	commands sync.WaitGroup

	mu       sync.Mutex
	requests []string
	asked    int // how often it was asked whether it is ready
	jobs     map[string][]string
}

func newDocumented(name string) *documented {
	d := &documented{mux: http.NewServeMux(), jobs: map[string][]string{}}
	if name == "nomad" {
		d.mux.HandleFunc("GET /v1/nodes", d.nomadNodes)
		d.mux.HandleFunc("POST /v1/jobs", d.nomadRegister)
		d.mux.HandleFunc("POST /v1/job/{id}/dispatch", d.nomadDispatch)
		return d
	}
	d.mux.HandleFunc("GET /v1/leader", d.dkronLeader)
	d.mux.HandleFunc("POST /v1/jobs", d.dkronCreate)
	d.mux.HandleFunc("POST /v1/jobs/{name}", d.dkronRun)
	return d
}

func (d *documented) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests = append(d.requests, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	d.mux.ServeHTTP(w, r)
}

// run carries a command out.
func (d *documented) run(command []string) {
	d.commands.Go(func() {
		if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			fmt.Fprintln(os.Stderr, err, string(output))
		}
	})
}

// nomadNodes is at first without a leader, then without a driver.
func (d *documented) nomadNodes(w http.ResponseWriter, _ *http.Request) {
	d.asked++
	switch d.asked {
	case 1:
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
	case 2:
		fmt.Fprint(w, `[{"Status": "initializing", "Drivers": {}}]`)
	case 3:
		fmt.Fprint(w, `[{"Status": "ready", "Drivers": {"exec": {"Detected": true, "Healthy": true}, "raw_exec": {"Detected": true, "Healthy": false}}}]`)
	default:
		fmt.Fprint(w, `[{"Address": "127.0.0.1", "Datacenter": "dc1", "Status": "ready", "Drivers": {"raw_exec": {"Attributes": {}, "Detected": true, "HealthDescription": "Healthy", "Healthy": true}}}]`)
	}
}

func (d *documented) nomadRegister(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Job struct {
			ID, Type         string
			Datacenters      []string
			ParameterizedJob struct{ MetaRequired []string }
			TaskGroups       []struct {
				Tasks []struct {
					Driver string
					Config struct {
						Command string   `json:"command"`
						Args    []string `json:"args"`
					}
				}
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || len(asked.Job.TaskGroups) != 1 || len(asked.Job.TaskGroups[0].Tasks) != 1 {
		http.Error(w, fmt.Sprintf("a job of one task: %v", err), http.StatusBadRequest)
		return
	}
	task := asked.Job.TaskGroups[0].Tasks[0]
	if task.Driver != "raw_exec" || !filepath.IsAbs(task.Config.Command) || asked.Job.Type != "batch" || fmt.Sprint(asked.Job.Datacenters) != "[dc1]" {
		http.Error(w, "not a job that runs here", http.StatusBadRequest)
		return
	}
	d.jobs[asked.Job.ID] = append([]string{task.Config.Command}, task.Config.Args...)
	fmt.Fprint(w, `{"EvalID": "", "EvalCreateIndex": 0, "JobModifyIndex": 109, "Warnings": "", "Index": 0}`)
}

func (d *documented) nomadDispatch(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Meta map[string]string }
	job, ok := d.jobs[r.PathValue("id")]
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || !ok || asked.Meta["number"] == "" {
		http.Error(w, fmt.Sprintf("job %q of %v: %v", r.PathValue("id"), asked, err), http.StatusInternalServerError)
		return
	}
	command := []string{job[0]}
	for _, arg := range job[1:] { // references are interpreted before the task is launched
		command = append(command, strings.ReplaceAll(arg, "${NOMAD_META_number}", asked.Meta["number"]))
	}
	d.run(command)
	fmt.Fprintf(w, `{"Index": 13, "JobCreateIndex": 12, "EvalCreateIndex": 13, "EvalID": "e5f55fac-bc69-119d-528a-1fc7ade5e02c", "DispatchedJobID": "%s/dispatch-1485408778-81644024"}`, r.PathValue("id"))
}

// dkronLeader is at first without one.
func (d *documented) dkronLeader(w http.ResponseWriter, _ *http.Request) {
	if d.asked++; d.asked > 1 {
		fmt.Fprint(w, `{"Name": "errand-bench", "Addr": "127.0.0.1", "Port": 8946, "Tags": {"server": "true"}, "Status": 1}`)
	}
}

var dkronNameForm = regexp.MustCompile(`^[\p{Ll}\p{Nd}_-]+$`)

func (d *documented) dkronCreate(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Name     string            `json:"name"`
		Schedule string            `json:"schedule"`
		Executor string            `json:"executor"`
		Config   map[string]string `json:"executor_config"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || !dkronNameForm.MatchString(asked.Name) || asked.Schedule != "@manually" ||
		asked.Executor != "shell" || asked.Config["shell"] != "true" || asked.Config["command"] == "" {
		http.Error(w, fmt.Sprintf("Bad request, the job is invalid: %v", err), http.StatusBadRequest)
		return
	}
	d.jobs[asked.Name] = []string{"/bin/sh", "-c", asked.Config["command"]}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"name": %q}`, asked.Name)
}

func (d *documented) dkronRun(w http.ResponseWriter, r *http.Request) {
	job, ok := d.jobs[r.PathValue("name")]
	if !ok {
		http.Error(w, "job not found", http.StatusNotFound)
		return
	}
	d.run(job)
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, `{"name": %q}`, r.PathValue("name"))
}

// documentedMain is one of them as a program, with what it must be told.
func documentedMain(name string, args []string) int {
	text := strings.Join(args, "\n")
	if text == "version" {
		fmt.Println(map[string]string{"nomad": "Nomad v1.9.3\nBuildDate 2024-11-11T16:35:41Z", "dkron": "Name: Dkron\nVersion: 4.0.4\nCodename: Devel"}[name])
		return 0
	}
	forms := []string{`(?m)^agent$`, `(?m)^--server$`, `(?m)^--bootstrap-expect=1$`, `(?m)^--disable-usage-stats$`, `(?m)^--data-dir=/`, `(?m)^--bind-addr=127\.0\.0\.1:\d+$`, `(?m)^--rpc-port=\d+$`, `(?m)^--http-addr=127\.0\.0\.1:(\d+)$`}
	if name == "nomad" {
		config, found := strings.CutPrefix(text, "agent\n-config=")
		read, err := os.ReadFile(config)
		if !found || err != nil {
			fmt.Fprintln(os.Stderr, "it was told", args, err)
			return 1
		}
		text = string(read)
		forms = []string{`(?m)^data_dir = "/`, `(?m)^bind_addr = "127\.0\.0\.1"$`, `(?m)^  bootstrap_expect = 1$`, `plugin "raw_exec" \{\n  config \{\n    enabled = true\n`, `disable_update_check = true`, `(?m)^  http = (\d+)$`}
	}
	port := ""
	for _, form := range forms {
		found := regexp.MustCompile(form).FindStringSubmatch(text)
		if found == nil {
			fmt.Fprintf(os.Stderr, "%s is not among what it was told\n", form)
			return 1
		}
		if len(found) > 1 {
			port = found[1]
		}
	}
	d := newDocumented(name)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	server := &http.Server{Addr: "127.0.0.1:" + port, Handler: d, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}()
	<-stop
	d.commands.Wait()
	return 0
}

// TestAPeerThatIsInstalledIsMeasured finds both on the path, as programs that do what
// their documentation says.
func TestAPeerThatIsInstalledIsMeasured(t *testing.T) {
	t.Parallel()
	impostor := programAs(t, "impostor")
	programs := map[string]string{"nomad": programAs(t, "nomad"), "dkron": programAs(t, "dkron")}
	find := func(program string) (string, error) { return programs[program], nil }
	r := rivalry{ours: impostorPeer(impostor, flawNone), rounds: 1, commands: 10, patience: steady}
	var told strings.Builder
	rows, err := peersFound(t.Context(), &told, find, r)
	if err != nil || told.Len() > 0 || len(rows) != 2*rowsOfAPeer {
		t.Fatalf("%+v, %v, told %q", rows, err, told.String())
	}
	wantFigures(t, rows[:rowsOfAPeer], nil, r.rounds, "Dkron 4.0.4")
	wantFigures(t, rows[rowsOfAPeer:], nil, r.rounds, "Nomad 1.9.3")
	if rows[0].bar() != ">= 1" {
		t.Errorf("the bar of Dkron is %q", rows[0].bar())
	}
}

// served is an API of one of them within this test.
func served(t *testing.T, name string) (*documented, *rest) {
	t.Helper()
	d := newDocumented(name)
	server := httptest.NewServer(d)
	api := &rest{address: server.URL, client: server.Client()}
	t.Cleanup(func() {
		server.Close()
		api.close()
		d.commands.Wait()
	})
	return d, api
}

// awaitReady asks until the answer is yes, and returns the errors that came before.
func awaitReady(t *testing.T, ready func() error) (errs []string) {
	t.Helper()
	for range 10 {
		err := ready()
		if err == nil {
			return errs
		}
		errs = append(errs, err.Error())
	}
	t.Fatalf("it never was: %q", errs)
	return nil
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNomadIsAskedByItsDocumentation(t *testing.T) {
	t.Parallel()
	d, api := served(t, "nomad")
	l := ledgerOf(t, t.TempDir())
	s := &nomadSession{rest: api}
	wantLines(t, awaitReady(t, func() error { return s.ready(t.Context()) }),
		`GET /v1/nodes: 500 Internal Server Error: "No cluster leader\n"`, "none of 1 nodes is ready and has raw_exec", "none of 1 nodes is ready and has raw_exec")
	arrived := l.expect(12)
	if err := errors.Join(s.register(t.Context(), l), s.prepare(t.Context(), 12, 1), s.submit(t.Context(), 12)); err != nil {
		t.Fatal(err)
	}
	awaitArrival(t, l, arrived)
	wantLines(t, d.requests[4:],
		`POST /v1/jobs {"Job":{"Datacenters":["dc1"],"ID":"errand-bench","Name":"errand-bench","ParameterizedJob":{"MetaRequired":["number"],"Payload":"forbidden"},`+
			`"TaskGroups":[{"Count":1,"EphemeralDisk":{"SizeMB":20},"Name":"command","ReschedulePolicy":{"Attempts":0,"Unlimited":false},"RestartPolicy":{"Attempts":0,"Mode":"fail"},`+
			`"Tasks":[{"Config":{"args":["-c","echo ${NOMAD_META_number} \u003e\u003e '`+l.path+`'"],"command":"/bin/sh"},"Driver":"raw_exec","LogConfig":{"MaxFileSizeMB":1,"MaxFiles":1},"Name":"command","Resources":{"CPU":10,"MemoryMB":10}}]}],"Type":"batch"}}`,
		`POST /v1/job/errand-bench/dispatch {"Meta":{"number":"12"}}`)
}

func TestDkronIsAskedByItsDocumentation(t *testing.T) {
	t.Parallel()
	d, api := served(t, "dkron")
	l := ledgerOf(t, t.TempDir())
	s := &dkronSession{rest: api, ledger: l}
	wantLines(t, awaitReady(t, func() error { return s.ready(t.Context()) }), `GET /v1/leader: "" is no answer: unexpected end of JSON input`)
	arrived := l.expect(12)
	if err := errors.Join(s.prepare(t.Context(), 12, 1), s.submit(t.Context(), 12)); err != nil {
		t.Fatal(err)
	}
	awaitArrival(t, l, arrived)
	wantLines(t, d.requests[2:],
		`POST /v1/jobs {"concurrency":"allow","executor":"shell","executor_config":{"command":"echo 12 \u003e\u003e '`+l.path+`'","shell":"true"},"name":"command-12","retries":0,"schedule":"@manually"}`,
		`POST /v1/jobs/command-12`)
	wantError(t, s.submit(t.Context(), 13), `POST /v1/jobs/command-13: 404 Not Found: "job not found\n"`)
}

func awaitArrival(t *testing.T, l *ledger, arrived <-chan struct{}) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := l.look(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-arrived:
			return
		default:
		}
	}
	t.Fatal("the command never ran")
}
