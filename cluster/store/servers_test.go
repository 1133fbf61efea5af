package store

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/freeport"
)

// serverVariable makes the test's binary an etcd server: it holds a serverPlan.
const serverVariable = "ERRAND_TEST_ETCD"

// serverPlan is what a server in a process of its own is told.
type serverPlan struct {
	Name, Dir, Peer, Client, Cluster string
	// OpsMax and Quota are the server's defaults where they are 0.
	OpsMax uint
	Quota  int64
	// Users lets it be told of users.
	Users bool
}

// serve is the whole of a server's process. It ends with its standard input.
func serve(text string) {
	var plan serverPlan
	err := json.Unmarshal([]byte(text), &plan)
	if err == nil {
		err = plan.serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (p serverPlan) serve() error {
	config := embed.NewConfig()
	config.Name, config.Dir = p.Name, p.Dir
	config.EnableGRPCGateway = false
	if !p.Users {
		config.AuthToken = ""
	}
	config.UnsafeNoFsync = true
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	peer, client := url.URL{Scheme: "http", Host: p.Peer}, url.URL{Scheme: "http", Host: p.Client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.InitialCluster = p.Cluster
	if p.OpsMax > 0 {
		config.MaxTxnOps = p.OpsMax
	}
	config.QuotaBackendBytes = p.Quota
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// process is an etcd server in a process of its own.
type process struct {
	t     *testing.T
	plan  serverPlan
	cmd   *exec.Cmd
	stdin io.Closer
	ready chan error
}

// startServers starts a cluster of servers, each in a process of its own, and returns
// when all answer.
func startServers(t *testing.T, n int, change func(*serverPlan)) []*process {
	t.Helper()
	address := func() string {
		t.Helper()
		address, err := freeport.Address()
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	dir := filepath.Dir(dataDir(t))
	servers := make([]*process, n)
	var members []string
	for i := range servers {
		name := fmt.Sprintf("s%d", i)
		servers[i] = &process{t: t, plan: serverPlan{Name: name, Dir: filepath.Join(dir, name), Peer: address(), Client: address()}}
		members = append(members, name+"=http://"+servers[i].plan.Peer)
	}
	for _, s := range servers {
		s.plan.Cluster = strings.Join(members, ",")
		if change != nil {
			change(&s.plan)
		}
		s.start()
	}
	for _, s := range servers {
		s.awaitReady()
	}
	return servers
}

func (s *process) start() {
	s.t.Helper()
	plan, err := json.Marshal(s.plan)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverVariable+"="+string(plan))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ready := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(stdout).ReadString('\n')
		ready <- err
		_, _ = io.Copy(io.Discard, stdout)
	}()
	s.cmd, s.stdin, s.ready = cmd, stdin, ready
	s.t.Cleanup(func() { s.end(cmd) })
}

func (s *process) awaitReady() {
	s.t.Helper()
	select {
	case err := <-s.ready:
		if err != nil {
			s.t.Fatalf("server %s: %v", s.plan.Name, err)
		}
	case <-time.After(patience):
		s.t.Fatalf("server %s does not get ready", s.plan.Name)
	}
}

// kill ends the server at once, whatever it does.
func (s *process) kill() { s.end(s.cmd) }

func (s *process) end(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// pause lets the server stand still, as on a machine that does.
func (s *process) pause() {
	s.t.Helper()
	s.signal(unix.SIGSTOP)
	for limit := time.Now().Add(patience); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
		if err != nil || time.Now().After(limit) {
			s.t.Fatalf("server %s does not stand still: %v", s.plan.Name, err)
		}
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && rest[0] == 'T' {
			return
		}
	}
}

func (s *process) resume() { s.signal(unix.SIGCONT) }

func (s *process) signal(signal unix.Signal) {
	s.t.Helper()
	if err := unix.Kill(s.cmd.Process.Pid, signal); err != nil {
		s.t.Fatal(err)
	}
}

// connect opens a store that knows this server only.
func (s *process) connect() *Store {
	s.t.Helper()
	return openAt(s.t, Config{Endpoints: []string{s.plan.Client}, Log: zap.NewNop()})
}

// client is one of etcd's own that knows this server only.
func (s *process) client() *clientv3.Client {
	s.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.plan.Client}, Logger: zap.NewNop()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// leaderOf returns the server that leads, as one of them says, and its term.
func leaderOf(t *testing.T, servers []*process, asked *process, not *process) (leader *process, term uint64) {
	t.Helper()
	client := asked.client()
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		status, err := client.Status(ctx, asked.plan.Client)
		members, listErr := client.MemberList(ctx)
		cancel()
		if err != nil || listErr != nil {
			continue
		}
		for _, member := range members.Members {
			for _, s := range servers {
				if member.ID == status.Leader && member.Name == s.plan.Name && s != not && s.leads(status.RaftTerm) {
					return s, status.RaftTerm
				}
			}
		}
	}
	t.Fatal("nobody leads")
	return nil, 0
}

// leads tells whether a server says of itself that it leads in a term: another's leader
// and term are read one after the other, and an election may lie between the two.
func (s *process) leads(term uint64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := s.client().Status(ctx, s.plan.Client)
	return err == nil && status.RaftTerm == term && status.Leader == status.Header.GetMemberId()
}

// others are the servers but one.
func others(servers []*process, but *process) []*process {
	var rest []*process
	for _, s := range servers {
		if s != but {
			rest = append(rest, s)
		}
	}
	return rest
}
