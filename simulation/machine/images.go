package machine

import (
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// ImageAbsent begins the names of images that no registry has.
const ImageAbsent = "absent/"

// images are what a machine has of images, and the pulls of what it has not. An image
// has one pull, whoever waits for it. Pulls are the daemon's and end with it; what they
// have brought stays.
type images struct {
	runtime *runtime
	there   map[string]bool
	pulls   []*pull
	// alone is until when the registry does not want to be asked, on the monotonic clock.
	alone time.Duration
}

// pull is the pull of one image.
type pull struct {
	image   string
	waiting []waitingForImage
	stop    func()
}

type waitingForImage struct {
	operation *operation
	deliver   func(error)
}

func (i *images) mono() time.Duration {
	m := i.runtime.machine
	mono, _, _ := m.oscillator.read(m.now())
	return mono
}

// has tells whether an image is there, or none is needed.
func (i *images) has(image string) bool { return image == "" || i.there[image] }

// await delivers nil when the image is there, now or later, or why it can not be had.
func (i *images) await(o *operation, deliver func(error)) {
	image := o.Spec.Spec.GetImage()
	if i.has(image) {
		deliver(nil)
		return
	}
	if left := i.alone - i.mono(); left > 0 {
		deliver(i.refuse(o, image, left))
		return
	}
	at := slices.IndexFunc(i.pulls, func(p *pull) bool { return p.image == image })
	if at < 0 {
		m := i.runtime.machine
		p := &pull{image: image}
		p.stop = m.timers.after(m.Faults.Runtime.Pull.Draw(m.random), false, func() { i.end(p) })
		at, i.pulls = len(i.pulls), append(i.pulls, p)
	}
	i.pulls[at].waiting = append(i.pulls[at].waiting, waitingForImage{o, deliver})
}

// end ends a pull, and tells all who wait for it how.
func (i *images) end(p *pull) {
	m := i.runtime.machine
	i.pulls = slices.DeleteFunc(i.pulls, func(other *pull) bool { return other == p })
	failed, left := virtual.Chance(m.random, m.Faults.Runtime.PullFailRate), time.Duration(0)
	switch {
	case failed:
		left = m.Faults.Runtime.PullRetryAfter.Draw(m.random)
		i.alone = i.mono() + left
	case !strings.HasPrefix(p.image, ImageAbsent):
		i.there[p.image] = true
	}
	for _, w := range p.waiting {
		switch {
		case failed:
			w.deliver(i.refuse(w.operation, p.image, left))
		case i.there[p.image]:
			w.deliver(nil)
		default:
			w.deliver(sandbox.Permanentf(recordv1.Reason_REASON_IMAGE_NOT_FOUND, "image %s is not in its registry", p.image))
		}
	}
}

// refuse says that an image can not be had for now, and for how long it is of no use to
// ask again.
func (i *images) refuse(o *operation, image string, left time.Duration) error {
	m := i.runtime.machine
	m.history.Add(history.Event{
		Step: m.step(), At: m.now(), Kind: history.KindSandbox, Node: m.name,
		Run: o.Spec.Run, Attempt: o.Spec.Attempt, Placement: o.Spec.Placement,
		Text: "image refused for " + left.Round(time.Millisecond).String(), Detail: history.Refused{RetryAfter: left},
	})
	return &sandbox.StartError{Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: "pull image " + image + ": too many requests", RetryAfter: left}
}

// give lets an operation wait no longer. A pull that nobody waits for ends.
func (i *images) give(o *operation) {
	for _, p := range slices.Clone(i.pulls) {
		p.waiting = slices.DeleteFunc(p.waiting, func(w waitingForImage) bool { return w.operation == o })
		if len(p.waiting) == 0 {
			p.stop()
			i.pulls = slices.DeleteFunc(i.pulls, func(other *pull) bool { return other == p })
		}
	}
}

// crash ends the pulls of a daemon, and what it remembers of its registry.
func (i *images) crash() {
	for _, p := range i.pulls {
		p.stop()
	}
	i.pulls, i.alone = nil, 0
}

// tooLate is the end of a create that has not come to its own.
func (o *operation) tooLate(cause error) {
	o.breakOff(records.Errorf(records.ClassDeadline, "create sandbox %s: %w", o.ID, cause))
}
