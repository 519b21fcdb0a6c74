package testenv

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"
)

// A durable Firehose stores each record under its buffer before it is acknowledged, and an
// object's name before the object: cut off between the two, it finds the object under the
// name and forgets the buffer. In memory nothing of this happens.

type storedDelivery struct {
	Name, ARN              string
	Created                time.Time
	Encryption             map[string]any
	Given                  map[string]json.RawMessage
	Bucket, Prefix, Suffix string
	Size                   int // bytes
	Interval               time.Duration
	Transforms             string
	Kind                   string          `json:",omitempty"` // of the source; "" is direct put
	Source                 json.RawMessage `json:",omitempty"`
}

type storedBuffer struct {
	Oldest time.Time
	Closed bool      `json:",omitempty"`
	Key    string    `json:",omitempty"` // of the object, once it is chosen
	Held   time.Time `json:",omitzero"`
}

func (ds *deliveryStream) bufferKey(space byte, b *buffer) string {
	return string(binary.BigEndian.AppendUint64(spaceKey(space, ds.id), b.number))
}

func (ds *deliveryStream) payloadKey(b *buffer) string {
	return string(binary.BigEndian.AppendUint32([]byte(ds.bufferKey(spacePayload, b)), uint32(len(b.records))))
}

// add puts a payload into a buffer, and what stores it among the stream's writes.
func (ds *deliveryStream) add(b *buffer, data []byte, now time.Time) {
	if ds.durable {
		ds.writes = append(ds.writes, write{key: ds.payloadKey(b), value: append([]byte{}, data...)})
	}
	b.data.Write(data)
	b.records = append(b.records, arrival{len(data), now})
}

// drop adds what deletes a buffer to the stream's writes.
func (ds *deliveryStream) drop(b *buffer) {
	if ds.durable {
		ds.writes = append(ds.writes, write{key: ds.bufferKey(spaceBuffer, b)}, deleteAll(ds.bufferKey(spacePayload, b)))
	}
}

// note adds what stores a buffer's state to the stream's writes.
func (ds *deliveryStream) note(b *buffer, closed bool) {
	if !ds.durable {
		return
	}
	// Two strings, a time and a flag always have a JSON form.
	text, _ := json.Marshal(storedBuffer{Oldest: b.oldest, Closed: closed, Key: b.key, Held: b.held})
	ds.writes = append(ds.writes, write{key: ds.bufferKey(spaceBuffer, b), value: text})
}

// commit stores what the stream's writes say; when it fails they wait for the next time.
func (f *firehose) commit(ds *deliveryStream) error {
	if !ds.durable {
		return nil
	}
	stats, err := jsonWrite(string(spaceKey(spaceDelivered, ds.id)), ds.stats)
	if err != nil {
		return err
	}
	if err := f.kv.apply(append(ds.writes[:len(ds.writes):len(ds.writes)], stats)); err != nil {
		return fmt.Errorf("store what delivery stream %s holds: %w", ds.name, err)
	}
	ds.writes = nil
	return nil
}

// keep returns what takes back all that put requests do after it.
func (ds *deliveryStream) keep() (undo func()) {
	open, closed, later, copies, stats, writes, next := ds.open, len(ds.closed), len(ds.later), ds.copies, ds.stats, len(ds.writes), ds.nextBuffer
	waiting := ds.later
	var records, size int
	if open != nil {
		records, size = len(open.records), open.data.Len()
	}
	return func() {
		if open != nil {
			open.records = open.records[:records]
			open.data.Truncate(size)
		}
		ds.open, ds.closed, ds.later = open, ds.closed[:closed], waiting[:later]
		ds.copies, ds.stats, ds.writes, ds.nextBuffer = copies, stats, ds.writes[:writes], next
	}
}

// forget deletes a buffer that is delivered or given up.
func (f *firehose) forget(ds *deliveryStream, b *buffer) error {
	if !ds.durable {
		return nil
	}
	before := len(ds.writes)
	ds.drop(b)
	err := f.commit(ds)
	if err != nil {
		ds.writes = ds.writes[:before]
	}
	return err
}

// register stores a new delivery stream; the caller holds mu.
func (f *firehose) register(ds *deliveryStream) error {
	if f.kv == nil {
		return nil
	}
	ds.durable, ds.id = true, f.nextID+1
	w, err := jsonWrite(string(spaceKey(spaceDelivery, ds.id)), storedDelivery{Name: ds.name, ARN: ds.arn, Created: ds.created,
		Encryption: ds.encryption, Given: ds.given, Bucket: ds.bucket, Prefix: ds.prefix, Suffix: ds.extension,
		Size: ds.size, Interval: ds.interval, Transforms: ds.transforms, Kind: ds.kind, Source: ds.source})
	if err != nil {
		return err
	}
	id := write{key: string(spaceEnv) + "delivery", value: binary.BigEndian.AppendUint32(nil, ds.id)}
	if err := f.kv.apply([]write{w, id}); err != nil {
		return fmt.Errorf("create delivery stream %s: %w", ds.name, err)
	}
	f.nextID = ds.id
	return nil
}

// unregister deletes all that is stored of a delivery stream; the caller holds mu.
func (f *firehose) unregister(ds *deliveryStream) error {
	if f.kv == nil {
		return nil
	}
	err := f.kv.apply([]write{
		{key: string(spaceKey(spaceDelivery, ds.id))},
		{key: string(spaceKey(spaceDelivered, ds.id))},
		deleteAll(string(spaceKey(spaceBuffer, ds.id))),
		deleteAll(string(spaceKey(spacePayload, ds.id))),
	})
	if err != nil {
		return fmt.Errorf("delete delivery stream %s: %w", ds.name, err)
	}
	return nil
}

// load reads the delivery streams that the store holds, with their buffers.
func (f *firehose) load() error {
	v, err := f.kv.get(string(spaceEnv) + "delivery")
	if err != nil {
		return err
	}
	if len(v) == 4 {
		f.nextID = binary.BigEndian.Uint32(v)
	}
	stored, err := readSpace(f.kv, string(spaceDelivery))
	if err != nil {
		return err
	}
	for _, w := range stored {
		var st storedDelivery
		if err := json.Unmarshal(w.value, &st); err != nil {
			return fmt.Errorf("read a delivery stream: %w", err)
		}
		ds := &deliveryStream{durable: true, id: binary.BigEndian.Uint32([]byte(w.key[1:])), streamSettings: streamSettings{
			name: st.Name, arn: st.ARN, created: st.Created, encryption: st.Encryption, given: st.Given,
			kind: cmp.Or(st.Kind, directPut), source: st.Source,
			destinationSettings: destinationSettings{bucket: st.Bucket, prefix: st.Prefix, extension: st.Suffix,
				size: st.Size, interval: st.Interval, transforms: st.Transforms},
		}}
		if err := f.loadStream(ds); err != nil {
			return fmt.Errorf("read delivery stream %s: %w", ds.name, err)
		}
		f.streams[ds.name] = ds
	}
	f.schedule()
	return nil
}

func (f *firehose) loadStream(ds *deliveryStream) error {
	v, err := f.kv.get(string(spaceKey(spaceDelivered, ds.id)))
	if err == nil && v != nil {
		err = json.Unmarshal(v, &ds.stats)
	}
	if err != nil {
		return err
	}
	stored, err := readSpace(f.kv, string(spaceKey(spaceBuffer, ds.id)))
	if err != nil {
		return err
	}
	for _, w := range stored {
		var st storedBuffer
		if err := json.Unmarshal(w.value, &st); err != nil {
			return err
		}
		ds.nextBuffer = binary.BigEndian.Uint64([]byte(w.key[5:]))
		b := ds.buffer(st.Oldest)
		b.key, b.held = st.Key, st.Held
		from := ds.bufferKey(spacePayload, b)
		err := f.kv.scan(from, after(from), false, func(_ string, v []byte) bool {
			b.data.Write(v)
			b.records = append(b.records, arrival{len(v), st.Oldest}) // each one's own time is not stored
			return true
		})
		if err != nil {
			return err
		}
		switch {
		case !st.Closed:
			ds.open = b
		case b.key != "" && f.store.holds(ds.bucket, b.key, b.data.Len()):
			ds.delivered(b)
			if err := f.forget(ds, b); err != nil {
				return err
			}
		default:
			ds.closed = append(ds.closed, b)
		}
	}
	return nil
}

// delivered counts an object.
func (ds *deliveryStream) delivered(b *buffer) {
	b.delivered = true
	if b.data.Len() > 0 {
		ds.stats.Objects++
		ds.stats.Bytes += b.data.Len()
	}
}

// readSpace returns all that a store holds under a prefix, as writes.
func readSpace(s store, prefix string) (all []write, err error) {
	err = s.scan(prefix, after(prefix), false, func(key string, v []byte) bool {
		all = append(all, write{key: key, value: v})
		return true
	})
	return all, err
}
