package lake

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"telemetrylake/pipeline"
)

func TestTheEndOfAnObjectIsReadAlone(t *testing.T) {
	b := newBucket(t, "a")
	if err := b.Create(t.Context(), "t/x", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64]string{3: "789", 10: "0123456789", 99: "0123456789"} {
		for _, size := range []int64{0, 10} { // as listed, or not known
			got, err := b.Tail(t.Context(), pipeline.Object{Key: "t/x", Size: size}, n)
			if err != nil || string(got) != want {
				t.Errorf("last %d of size %d: %q, %v", n, size, got, err)
			}
		}
	}
	if _, err := b.Tail(t.Context(), pipeline.Object{Key: "t/y"}, 3); !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
}

func TestPartitionsAndTheNewestObjectsAreListed(t *testing.T) {
	b := newBucket(t, "a")
	for i := range 5 {
		if err := b.Create(t.Context(), fmt.Sprintf("t/dt=%d/o", i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	days, err := b.Folders(t.Context(), "t/")
	if err != nil || !slices.Equal(days, []string{"dt=0/", "dt=1/", "dt=2/", "dt=3/", "dt=4/"}) {
		t.Errorf("folders %v, %v", days, err)
	}
	for most, want := range map[int]int{2: 2, 5: 3, 0: 0} {
		found, err := b.Newest(t.Context(), []string{"t/dt=1/", "t/dt=3/", "t/dt=4/", "t/dt=9/"}, most)
		if err != nil || len(found) != want {
			t.Errorf("newest %d: %v, %v", most, found, err)
		}
	}
}
