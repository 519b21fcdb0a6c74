package seal

import (
	"bytes"
	"errors"
	"testing"
)

func TestFootersAreReadWithoutTheirFiles(t *testing.T) {
	parts := realParts(t)
	joined := append(bytes.Join(parts, nil), "damage"...)
	metas, others := ReadPartMetas(joined)
	if len(metas) != len(parts) || others != 1 {
		t.Fatalf("%d of %d parts, %d others", len(metas), len(parts), others)
	}
	for i, m := range metas {
		if want := opened(t, parts[i]).meta; m.ID() != want.ID() || m.Rows != want.Rows {
			t.Errorf("part %d is %s, want %s", i, m.ID(), want.ID())
		}
	}
	end := parts[0]
	n, err := FooterSize(end[len(end)-8:])
	if err != nil || n < 8 || n > int64(len(end)) {
		t.Fatalf("footer of %d bytes, %v", n, err)
	}
	if _, _, err := ReadObject(end[int64(len(end))-n+1:]); !errors.Is(err, ErrShort) {
		t.Errorf("a byte too few: %v", err)
	}
	if m, _, err := ReadObject(end[int64(len(end))-n:]); m != nil || err != nil {
		t.Errorf("a part is an object: %v, %v", m, err)
	}
	if _, _, err := ReadObject([]byte("no Parquet file")); err == nil {
		t.Error("a text has a footer")
	}
}
