package activation

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// Errors of what comes from, or goes to, another node.
var (
	// ErrUnreadable is returned for a message of a type that is not known here, or
	// that can not be decoded.
	ErrUnreadable = errors.New("the message can not be read")
	// ErrTooLarge is returned for a message that does not fit into a packet.
	ErrTooLarge = errors.New("the message is too large")
	// ErrRefused is returned when the directory of another node, or the actor there,
	// did not take the message.
	ErrRefused = errors.New("the other node refused")
)

// arrival is a packet on its way to the activator. Its message has been decoded.
type arrival struct {
	from    string
	packet  *actorv1.Packet
	message proto.Message
}

// Receive takes a packet that a node's Transport was given for this one. It does
// not block and may be called from any goroutine, with anything: what can not be
// read or taken is refused and counted. The packet must not be changed afterwards.
func (d *Directory) Receive(from string, packet *actorv1.Packet) {
	if d.options.Transport == nil {
		return
	}
	switch content := packet.GetContent().(type) {
	case *actorv1.Packet_Deliver:
		if err := d.receiveDeliver(from, packet, content.Deliver); err != nil {
			d.refuseTell(address{kind: clip(content.Deliver.GetKind()), identity: clip(content.Deliver.GetIdentity())}, err)
			d.sendTaken(from, packet, err)
		}
	case *actorv1.Packet_Taken:
		d.post(&arrival{from: from, packet: packet})
	case *actorv1.Packet_Reply:
		message, err := decode(content.Reply.GetType(), content.Reply.GetMessage())
		if err != nil && content.Reply.GetRefusal() == "" {
			// It is an answer all the same: that there is none to be had.
			packet = replyRefusal(packet, err)
		}
		d.post(&arrival{from: from, packet: packet, message: message})
	default:
		d.refuseTell(address{}, fmt.Errorf("packet of node %q: %w", clip(from), ErrUnreadable))
	}
}

func (d *Directory) receiveDeliver(from string, packet *actorv1.Packet, deliver *actorv1.Deliver) error {
	message, err := decode(deliver.GetType(), deliver.GetMessage())
	if err != nil {
		return err
	}
	if err := d.admit(); err != nil {
		return err
	}
	d.send(&arrival{from: from, packet: packet, message: message}, nil)
	return nil
}

// post takes what settles a delivery. When there is no room for it, its sender's
// time will settle that.
func (d *Directory) post(in *arrival) {
	if d.admit() == nil {
		d.send(in, nil)
	}
}

// sendTaken tells who sent a Deliver what became of it, if it wants to know.
func (d *Directory) sendTaken(to string, deliver *actorv1.Packet, err error) {
	if deliver.GetId() == 0 {
		return
	}
	taken := &actorv1.Taken{}
	if err != nil {
		taken.Refusal = err.Error()
	}
	d.options.Transport.Send(to, &actorv1.Packet{
		Id: deliver.GetId(), Incarnation: deliver.GetIncarnation(), Content: &actorv1.Packet_Taken{Taken: taken},
	})
}

// deliverPacket encodes a message for another node.
func (d *Directory) deliverPacket(id uint64, to address, p pending, wait time.Duration) (*actorv1.Packet, error) {
	name, encoded, err := encode(p.message)
	if err != nil {
		return nil, err
	}
	deliver := &actorv1.Deliver{Kind: to.kind, Identity: to.identity, Type: name, Message: encoded}
	if p.sender != nil {
		deliver.Ask, deliver.WaitMs = true, wait.Milliseconds()
	}
	return &actorv1.Packet{Id: id, Incarnation: d.options.Incarnation, Content: &actorv1.Packet_Deliver{Deliver: deliver}}, nil
}

// replyPacket encodes an actor's answer, or why there is none.
func replyPacket(id, incarnation uint64, answer any, err error) *actorv1.Packet {
	packet := &actorv1.Packet{Id: id, Incarnation: incarnation}
	reply := &actorv1.Reply{}
	switch answer := answer.(type) {
	case refusal:
		err = answer.err
	case proto.Message:
		reply.Type, reply.Message, err = encode(answer)
	default:
		if err == nil {
			err = records.Errorf(records.ClassInternal, "the answer is a %T", answer)
		}
	}
	if err != nil {
		return replyRefusal(packet, err)
	}
	packet.Content = &actorv1.Packet_Reply{Reply: reply}
	return packet
}

func replyRefusal(of *actorv1.Packet, err error) *actorv1.Packet {
	return &actorv1.Packet{
		Id: of.GetId(), Incarnation: of.GetIncarnation(),
		Content: &actorv1.Packet_Reply{Reply: &actorv1.Reply{Refusal: err.Error()}},
	}
}

func encode(message proto.Message) (name string, encoded []byte, err error) {
	if message == nil {
		return "", nil, records.Errorf(records.ClassInvalid, "no message: %w", ErrUnreadable)
	}
	// Of equal messages equal packets: what a world does must not depend on a map.
	encoded, err = proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return "", nil, records.Errorf(records.ClassInvalid, "encode: %w", err)
	}
	if len(encoded) > MessageBytesMax {
		return "", nil, records.Errorf(records.ClassInvalid, "%d bytes, of which %d fit: %w", len(encoded), MessageBytesMax, ErrTooLarge)
	}
	return string(message.ProtoReflect().Descriptor().FullName()), encoded, nil
}

func decode(name string, encoded []byte) (proto.Message, error) {
	if len(encoded) > MessageBytesMax {
		return nil, records.Errorf(records.ClassInvalid, "%d bytes, of which %d fit: %w", len(encoded), MessageBytesMax, ErrTooLarge)
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		return nil, records.Errorf(records.ClassInvalid, "type %q: %w", clip(name), ErrUnreadable)
	}
	message := kind.New().Interface()
	if err := proto.Unmarshal(encoded, message); err != nil {
		// What the decoder says may hold a part of the message.
		return nil, records.Errorf(records.ClassInvalid, "%s of %d bytes: %w", name, len(encoded), ErrUnreadable)
	}
	return message, nil
}

// clip shortens what another node sent for a log or an error.
func clip(text string) string {
	const bytesMax = 128
	if len(text) > bytesMax {
		return text[:bytesMax] + "..."
	}
	return text
}
