package pipeline_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	streamtypes "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"telemetrylake/pipeline"
)

// filled is a batch of n readings whose compressibility f decides, by the share of the rows so
// far: it returns the digits that a row's tie is made of.
func filled(n int, tie func(share float64, rng *rand.Rand) string) pipeline.Batch {
	rng := rand.New(rand.NewPCG(7, 7))
	b := pipeline.Batch{Shard: "s"}
	start := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for i := range n {
		r := record("s", 1+i)
		at := start.Add(time.Duration(i) * time.Second / 2) // all of them one day
		// One device, so that the rows stay in this order.
		r.New["pk"] = &streamtypes.AttributeValueMemberS{Value: "DEVICE#7"}
		sk := &streamtypes.AttributeValueMemberS{Value: "TS#" + at.Format("2006-01-02T15:04:05.000Z") + "#" + tie(float64(i)/float64(n), rng)}
		r.New["sk"], r.New["takenAt"] = sk, &streamtypes.AttributeValueMemberN{Value: strconv.FormatInt(at.UnixMilli(), 10)}
		r.New["celsius"] = &streamtypes.AttributeValueMemberN{Value: fmt.Sprintf("%d.%02d", rng.IntN(40), rng.IntN(100))}
		r.Keys = map[string]streamtypes.AttributeValue{"pk": r.New["pk"], "sk": sk}
		r.Created = start.Add(24 * time.Hour)
		b.Records = append(b.Records, r)
	}
	return b
}

func noise(n int, rng *rand.Rand) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('!' + rng.IntN(90))
		if b[i] == '#' {
			b[i] = 'x'
		}
	}
	return string(b)
}

// Small bounds with the proportions of the real ones keep the test fast.
var small = pipeline.PartSize{Aim: 90 << 10, Limit: 100 << 10}

func TestPartsAreFullAndNeverOverTheLimit(t *testing.T) {
	for name, tie := range map[string]func(float64, *rand.Rand) string{
		"compress well":        func(float64, *rand.Rand) string { return "1" },
		"hardly compress":      func(_ float64, rng *rand.Rand) string { return noise(24, rng) },
		"of any size":          func(_ float64, rng *rand.Rand) string { return noise(1+rng.IntN(60), rng) },
		"grow":                 func(share float64, rng *rand.Rand) string { return noise(1+int(60*share), rng) },
		"shrink":               func(share float64, rng *rand.Rand) string { return noise(1+int(60*(1-share)), rng) },
		"become large at once": func(share float64, rng *rand.Rand) string { return noise(1+200*int(2*share), rng) },
		"become small at once": func(share float64, rng *rand.Rand) string { return noise(201-200*int(2*share), rng) },
		"come in bursts":       func(share float64, rng *rand.Rand) string { return noise(1+150*(int(share*23)%2), rng) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newTrack(t, small, "s")
			b := filled(12_000, tie)
			ms := k.window(b)
			if len(ms) != 1 {
				t.Fatalf("%d windows", len(ms))
			}
			total, rows := 0, 0
			for i, p := range k.shelf.parts {
				total += len(p.Body)
				rows += p.Rows
				if len(p.Body) > small.Limit {
					t.Errorf("part %d of %d has %d bytes, the limit is %d", i, len(k.shelf.parts), len(p.Body), small.Limit)
				}
				if last := i == len(k.shelf.parts)-1; !last && len(p.Body) < small.Aim*85/100 {
					t.Errorf("part %d of %d has %d bytes in %d rows: there were rows for %d", i, len(k.shelf.parts), len(p.Body), p.Rows, small.Aim)
				}
			}
			if rows != len(b.Records) {
				t.Errorf("%d rows of %d", rows, len(b.Records))
			}
			t.Logf("%d parts of %d bytes on average", len(k.shelf.parts), total/len(k.shelf.parts))
		})
	}
}

// A row that is over the limit by itself goes alone; all others still make parts within it.
func TestARowOverTheLimitIsAPartByItself(t *testing.T) {
	k := newTrack(t, small, "s")
	b := filled(3000, func(_ float64, rng *rand.Rand) string { return noise(24, rng) })
	rng := rand.New(rand.NewPCG(1, 1))
	for _, i := range []int{0, 1500, 2999} {
		// A reading without a time is quarantined with all of its item.
		b.Records[i].New["takenAt"] = &streamtypes.AttributeValueMemberS{Value: noise(200<<10, rng)}
	}
	for i := 1; i < 1000; i += 2 { // and small ones around it in the same table
		b.Records[i].New["takenAt"] = &streamtypes.AttributeValueMemberS{Value: noise(20, rng)}
	}
	k.window(b)
	over, rows := 0, 0
	for _, p := range k.shelf.parts {
		rows += p.Rows
		if len(p.Body) > small.Limit {
			over++
			if p.Rows != 1 {
				t.Errorf("a part of %d bytes has %d rows", len(p.Body), p.Rows)
			}
		}
	}
	if over != 3 || rows != 3000 {
		t.Errorf("%d parts over the limit, %d rows; want 3 and 3000", over, rows)
	}
}

// The cut may depend on what was cut before, the rows of a recovered window may not; and two
// processes that begin alike cut alike.
func TestCutsAreReproducible(t *testing.T) {
	b := filled(4000, func(_ float64, rng *rand.Rand) string { return noise(24, rng) })
	var first []pipeline.Part
	for range 2 {
		k := newTrack(t, small, "s")
		k.window(b)
		if first == nil {
			first = k.shelf.parts
			continue
		}
		if len(first) != len(k.shelf.parts) {
			t.Fatalf("%d parts, then %d", len(first), len(k.shelf.parts))
		}
		for i, p := range k.shelf.parts {
			// The incarnations differ, and with them the metadata; nothing else does.
			inc := []byte(first[i].ID.Window.Incarnation)
			if !bytes.Equal(bytes.ReplaceAll(p.Body, []byte(p.ID.Window.Incarnation), inc), first[i].Body) {
				t.Errorf("part %d differs", i)
			}
		}
	}
}

func TestPartsHoldOneTableAndPartitionInOrder(t *testing.T) {
	k := newTrack(t, pipeline.PartSize{Rows: 2}, "s")
	b := k.batch("s", 1, 9)
	day := func(i, days int) {
		at := time.Date(2026, 11, 30, 0, 0, i, 0, time.UTC).AddDate(0, 0, days)
		b.Records[i].New["takenAt"] = &streamtypes.AttributeValueMemberN{Value: strconv.FormatInt(at.UnixMilli(), 10)}
		b.Records[i].New["sk"] = &streamtypes.AttributeValueMemberS{Value: "TS#" + at.Format("2006-01-02T15:04:05.000Z")}
		b.Records[i].Keys["sk"] = b.Records[i].New["sk"]
	}
	for i := range b.Records {
		day(i, -i%3)
	}
	b.Records[4].Op = streamtypes.OperationTypeModify
	ms := k.window(b)
	var got []string
	for _, p := range ms[0].Parts {
		got = append(got, fmt.Sprintf("%s %s %d", p.Table, p.Partition, p.Rows))
	}
	want := []string{
		"sensor_readings dt=2026-11-28 2", "sensor_readings dt=2026-11-28 1", "sensor_readings dt=2026-11-29 2",
		"sensor_readings dt=2026-11-30 2", "sensor_readings dt=2026-11-30 1", "sensor_readings_changes dt=2026-11-29 1",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("parts are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
