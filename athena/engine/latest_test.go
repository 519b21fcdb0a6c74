//go:build cgo && ((linux && (amd64 || arm64)) || (darwin && (amd64 || arm64)) || (windows && amd64))

package engine

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telemetrylake/athena"
	"telemetrylake/schemas"
)

// version is a row of dispositivos as it lies in a file.
type version struct {
	Home    string     `parquet:"casa_id"`
	Device  string     `parquet:"dispositivo_id"`
	Kind    string     `parquet:"tipo"`
	Name    *string    `parquet:"nombre,optional"`
	At      time.Time  `parquet:"actualizado_en,timestamp(millisecond)"`
	Keys    string     `parquet:"item_keys"`
	Created *time.Time `parquet:"stream_created_at,optional,timestamp(millisecond)"`
	Shard   *string    `parquet:"stream_shard,optional"`
	Seq     *string    `parquet:"stream_seq,optional"`
}

// deletion is a row of dispositivos_tombstones.
type deletion struct {
	Home    *string   `parquet:"casa_id,optional"`
	Device  *string   `parquet:"dispositivo_id,optional"`
	Keys    string    `parquet:"item_keys"`
	Cause   string    `parquet:"delete_cause"`
	Created time.Time `parquet:"stream_created_at,timestamp(millisecond)"`
	Shard   string    `parquet:"stream_shard"`
	Seq     string    `parquet:"stream_seq"`
}

func keysOf(device string) string {
	return `{"casaId":{"S":"c"},"dispositivoId":{"S":"` + device + `"}}`
}

const second = "2026-11-30T10:00:05Z"

// put is a version that the stream has: what the device's clock says of it is another day.
func put(device, name, created, seq string) version {
	c := at(created)
	return version{"c", device, "enchufe", &name, c.Add(-48 * time.Hour), keysOf(device), &c, new("s"), &seq}
}

func deleted(device, created, seq string) deletion {
	return deletion{new("c"), &device, keysOf(device), "user", at(created), "s", seq}
}

func TestTheLatestVersionOfEachItemThatIsNotDeleted(t *testing.T) {
	long := strings.Repeat("4", 56) // LocalStack's have that many digits
	rows := []version{
		put("later-second", "old", "2026-11-30T10:00:04Z", "900"), put("later-second", "new", second, "1000"),
		// Numbers, not texts: 999 comes before 1000.
		put("same-second", "old", second, "999"), put("same-second", "new", second, "1000"),
		put("leading-zeros", "old", second, "0000999"), put("leading-zeros", "new", second, "1000"),
		put("long", "old", second, long+"1"), put("long", "new", second, long+"2"),
		put("deleted", "gone", second, "1000"),
		put("deleted-before", "back", second, "1000"),
		put("deleted-between", "old", "2026-11-30T10:00:03Z", "1"), put("deleted-between", "back", "2026-11-30T10:00:07Z", "3"),
		put("deleted-twice", "a", "2026-11-30T10:00:03Z", "1"), put("deleted-twice", "b", "2026-11-30T10:00:05Z", "3"),
		put("once", "only", second, "1"),
	}
	// A backfilled version: the event time places it, in whole seconds, before the stream's.
	filled := func(device, name, event string) version {
		v := put(device, name, second, "1")
		v.At, v.Created, v.Shard, v.Seq = at(event), nil, nil, nil
		return v
	}
	rows = append(rows,
		filled("filled", "only", "2020-01-01T00:00:00Z"),
		filled("filled-before", "old", "2026-11-30T09:00:00Z"), put("filled-before", "new", second, "1"),
		filled("filled-after", "new", "2026-11-30T11:00:00Z"), put("filled-after", "old", second, "1"),
		filled("filled-same-second", "old", "2026-11-30T10:00:05.900Z"), put("filled-same-second", "new", second, "1"),
		filled("filled-twice", "old", "2026-11-30T10:00:05.100Z"), filled("filled-twice", "new", "2026-11-30T10:00:05.900Z"),
		filled("filled-deleted", "gone", "2026-11-30T10:00:05.900Z"))
	// Two items whose columns are alike: their keys are not.
	twin := put("once", "twin", second, "2")
	twin.Keys = keysOf("once ")
	rows = append(rows, twin)

	root := t.TempDir()
	for i, v := range rows { // each in a file and a partition of its own event
		write(t, filepath.Join(root, "dispositivos", "dt="+v.At.Format(time.DateOnly), string(rune('a'+i))+".parquet"), v)
	}
	write(t, filepath.Join(root, "dispositivos_tombstones/dt=2026-11-30/a.parquet"),
		deleted("deleted", second, "1001"),
		deleted("deleted-before", second, "999"),
		deleted("deleted-between", second, "2"),
		deleted("deleted-twice", "2026-11-30T10:00:04Z", "2"), deleted("deleted-twice", "2026-11-30T10:00:06Z", "4"),
		deleted("filled-deleted", second, "7"),
		deleted("never-seen", second, "8"))

	r := query(t, withLatest(t, root), "SELECT dispositivo_id, nombre, averia FROM dispositivos_latest ORDER BY 1, 2")
	var want [][]any
	for _, name := range []string{"deleted-before", "deleted-between"} {
		want = append(want, []any{name, "back", nil})
	}
	want = append(want, []any{"filled", "only", nil})
	for _, name := range []string{"filled-after", "filled-before", "filled-same-second", "filled-twice", "later-second", "leading-zeros", "long"} {
		want = append(want, []any{name, "new", nil})
	}
	want = append(want, []any{"once", "only", nil}, []any{"once", "twin", nil}, []any{"same-second", "new", nil})
	wantRows(t, r, want...)
}

func withLatest(t *testing.T, root string) *Lake {
	t.Helper()
	c, err := schemas.Load("dispositivos")
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, root, c.Tables())
	v, ok := athena.Latest(c, athena.Options{})
	if !ok {
		t.Fatal("dispositivos has no view")
	}
	if err := l.AddView(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestTheLatestOfNothingIsNothing(t *testing.T) {
	l := withLatest(t, t.TempDir())
	r := query(t, l, "SELECT * FROM dispositivos_latest")
	if len(r.Rows) != 0 || len(r.Columns) != 10 {
		t.Errorf("%d rows of %v", len(r.Rows), r.Columns)
	}
	if err := l.AddView(t.Context(), athena.View{Name: "x", SQL: "SELECT 1 FROM nowhere"}); err == nil || !strings.Contains(err.Error(), "add view x") {
		t.Errorf("error %v", err)
	}
}
