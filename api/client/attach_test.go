package client_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type attached = *connect.BidiStream[errandv1.AttachRequest, errandv1.AttachResponse]

var errEnough = errors.New("enough")

// typing is an input that ends the call behind some text.
func typing(text string) io.Reader { return io.MultiReader(strings.NewReader(text), failing{}) }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errEnough }

// attachTo gives a run that node serves an input.
func attachTo(t *testing.T, stdin io.Reader, node func(attached) error) error {
	t.Helper()
	s := startFake(t, func(s *fakeapi.Server) {
		s.Script = func(l *fakeapi.Live) { l.Start() }
		s.Attached = node
	})
	c := newClient(t, client.Config{Address: s.URL()})
	ctx := within(t, 2*time.Minute)
	run, err := c.Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Image: "busybox", Terminal: true}})
	if err != nil {
		t.Fatal(err)
	}
	return c.Attach(ctx, client.Attach{Run: run.GetId(), Stdin: stdin, Typed: true})
}

// receive returns what a call is given until so many bytes are there.
func receive(stream attached, bytes int) (text string, err error) {
	for len(text) < bytes {
		message, err := stream.Receive()
		if err != nil {
			return text, err
		}
		text += string(message.GetStdin())
	}
	return text, nil
}

// untilGone waits until the caller has gone.
func untilGone(stream attached) error {
	for {
		if _, err := stream.Receive(); err != nil {
			return nil //nolint:nilerr // the caller has gone, as it should
		}
	}
}

// What was typed before the keys that leave a run is the command's.
func TestAttachLeavesWhenTheCommandHasTakenWhatCameBefore(t *testing.T) {
	const text = "echo kept\n"
	got, taken := "", make(chan struct{})
	result := make(chan error, 1)
	node := func(stream attached) (err error) {
		if err := stream.Send(&errandv1.AttachResponse{Open: true, Window: 256 << 10}); err != nil {
			return err
		}
		if got, err = receive(stream, len(text)); err != nil {
			return err
		}
		select {
		case err := <-result:
			t.Errorf("it has left before the command had taken anything: %v", err)
		case <-time.After(100 * time.Millisecond): // it would have left by now if it were to
		}
		close(taken)
		if err := stream.Send(&errandv1.AttachResponse{Taken: int64(len(text))}); err != nil {
			return err
		}
		return untilGone(stream)
	}
	result <- attachTo(t, typing(text), func(stream attached) error { return node(stream) })
	select {
	case <-taken:
	default:
		t.Error("it has left and the command has not taken what came before")
	}
	if err := <-result; !errors.Is(err, errEnough) || errors.As(err, new(*client.InputLostError)) {
		t.Errorf("left with %v", err)
	}
	if got != text {
		t.Errorf("the command was given %q, want %q", got, text)
	}
}

func TestAttachLeavesACommandThatTakesNothingAfterAWhileAndSaysWhatIsLost(t *testing.T) {
	began := time.Now()
	err := attachTo(t, typing("never read"), func(stream attached) error {
		if err := stream.Send(&errandv1.AttachResponse{Open: true, Window: 256 << 10}); err != nil {
			return err
		}
		if _, err := receive(stream, 10); err != nil {
			return err
		}
		if err := stream.Send(&errandv1.AttachResponse{Taken: 4}); err != nil {
			return err
		}
		return untilGone(stream)
	})
	var lost *client.InputLostError
	if !errors.As(err, &lost) || lost.Unsure != 6 || !errors.Is(err, errEnough) {
		t.Errorf("left with %v", err)
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("left after %s", took)
	}
}

func TestAttachLeavesACommandThatDoesNotRunYet(t *testing.T) {
	if err := attachTo(t, typing(""), untilGone); !errors.Is(err, errEnough) || errors.As(err, new(*client.InputLostError)) {
		t.Errorf("when nothing was typed: left with %v", err)
	}
	var lost *client.InputLostError
	if err := attachTo(t, typing("early"), untilGone); !errors.As(err, &lost) || lost.Unsure != 5 || !errors.Is(err, errEnough) {
		t.Errorf("when something was typed: left with %v", err)
	}
}

// A connection that breaks while the rest is awaited leaves nothing more to wait for.
func TestAttachThatIsCutWhileItLeavesDoesNotHang(t *testing.T) {
	calls := 0
	err := attachTo(t, typing("cut"), func(stream attached) error {
		calls++
		if err := stream.Send(&errandv1.AttachResponse{Open: true, Window: 256 << 10}); err != nil {
			return err
		}
		if calls > 1 {
			return untilGone(stream)
		}
		_, err := receive(stream, 3)
		return errors.Join(connect.NewError(connect.CodeUnavailable, errors.New("the node stops")), err)
	})
	if !errors.Is(err, errEnough) {
		t.Errorf("left with %v", err)
	}
}
