package columnar

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"telemetrylake/schemas"
)

func TestValuesAreWrittenAsTheirColumnsSay(t *testing.T) {
	table := schemas.Table{Name: "t", Columns: []schemas.Column{
		{Name: "at", Type: schemas.Type{Kind: schemas.Timestamp}}, {Name: "name", Type: schemas.Type{Kind: schemas.String}, Nullable: true},
		{Name: "n", Type: schemas.Type{Kind: schemas.BigInt}, Nullable: true}, {Name: "ok", Type: schemas.Type{Kind: schemas.Boolean}, Nullable: true},
	}}
	at := time.Date(2026, 11, 30, 7, 0, 0, 5e6, time.UTC)
	enc := NewEncoder(checked(t))
	var b bytes.Buffer
	if err := enc.Values(&b, table, [][]any{{at, "x", int64(1 << 60), true}, {at, nil, nil, nil}}); err != nil {
		t.Fatal(err)
	}
	type row struct {
		At   time.Time `parquet:"at,timestamp(millisecond)"`
		Name *string   `parquet:"name,optional"`
		N    *int64    `parquet:"n,optional"`
		OK   *bool     `parquet:"ok,optional"`
	}
	rows, err := parquet.Read[row](bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if r := rows[0]; !r.At.Equal(at) || *r.Name != "x" || *r.N != 1<<60 || !*r.OK {
		t.Errorf("the first row is %+v", r)
	}
	if r := rows[1]; r.Name != nil || r.N != nil || r.OK != nil {
		t.Errorf("the second row is %+v", r)
	}
	b.Reset()
	if err := enc.Values(&b, table, nil); err != nil {
		t.Fatal(err)
	}
	if rows, err := parquet.Read[row](bytes.NewReader(b.Bytes()), int64(b.Len())); err != nil || len(rows) != 0 {
		t.Errorf("without rows: %d, %v", len(rows), err)
	}
	for want, bad := range map[string][]any{
		"row 0 of table t: column at: no value":           {nil, "x", int64(1), true},
		"column name: int64 is no value of type utf8":     {at, int64(1), nil, nil},
		"column n: int is no value of type int64":         {at, nil, 1, nil},
		"row 0 of table t has 1 values for 4 columns":     {at},
		"column at: string is no value of type timestamp": {"2026", nil, nil, nil},
	} {
		if err := enc.Values(&bytes.Buffer{}, table, [][]any{bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of %v: %v, want %q", bad, err, want)
		}
	}
}
