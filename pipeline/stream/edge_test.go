package stream

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telemetrylake/pipeline"
)

func TestAShardWhoseParentIsNoLongerThereIsARoot(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "b", parent: "a", pages: [][]int{{1}}, open: true}}}
	c, l := newCheckpoint(), log{}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 5); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 1)
	if len(c.owned) != 1 || c.owned[0].Parent != "" {
		t.Errorf("owned %+v", c.owned)
	}
}

func TestAnUnlistedParentThatWasFinishedFreesItsChild(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "b", parent: "a", pages: [][]int{{1}}, open: true}}}
	c, l := newCheckpoint(), log{}
	c.committed["a"] = pipeline.Position{Seq: seq(0), End: true}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 5); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 1)
}

func TestAListingThatLeavesOutAParentDoesNotFreeItsChild(t *testing.T) {
	s := &stub{shards: []*stubShard{
		{id: "a", hidden: -1, pages: [][]int{{1}, {}, {2}}},
		{id: "b", parent: "a", pages: [][]int{{3}}, open: true},
	}}
	c, l := newCheckpoint(), log{}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 9); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 1, 2, 3)
}

func TestChildrenThatAreListedLateAreFound(t *testing.T) {
	for name, noFilter := range map[string]bool{"with the filter for children": false, "without it": true} {
		t.Run(name, func(t *testing.T) {
			s := &stub{noFilter: noFilter, shards: []*stubShard{
				{id: "a", pages: [][]int{{1}}},
				{id: "b", parent: "a", hidden: 5, pages: [][]int{{2}}, open: true},
			}}
			c, l := newCheckpoint(), log{}
			now := start
			r := s.reader(c, Options{Now: func() time.Time { return now }})
			for range 12 {
				if _, err := drive(t, r, c, &l, 1); err != nil {
					t.Fatal(err)
				}
				now = now.Add(time.Minute)
			}
			wantValues(t, l, 1, 2)
		})
	}
}

func TestAListingOfManyPagesIsReadToItsEnd(t *testing.T) {
	s := &stub{perDescribe: 2}
	for i := range 7 {
		s.shards = append(s.shards, &stubShard{id: fmt.Sprint("s", i), pages: [][]int{{i}}, open: true})
	}
	c, l := newCheckpoint(), log{}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 5); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 0, 1, 2, 3, 4, 5, 6)
}

func TestAnEmptyPageIsNotTheEnd(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "a", pages: append(make([][]int, 20), []int{1})}}}
	c, l := newCheckpoint(), log{}
	r := s.reader(c, Options{})
	for range 21 {
		if _, err := r.Round(t.Context(), l.emit); err != nil {
			t.Fatal(err)
		}
	}
	if len(l) != 1 || !l[0].End {
		t.Errorf("emitted %+v", l)
	}
	wantValues(t, l, 1)
}

func TestOneShardThatFailsDoesNotStopTheOthers(t *testing.T) {
	for _, failure := range []string{"LimitExceededException", "InternalServerError", "ThrottlingException"} {
		t.Run(failure, func(t *testing.T) {
			s := &stub{shards: []*stubShard{
				{id: "a", pages: [][]int{{1}}, open: true}, {id: "b", pages: [][]int{{2}}, open: true}, {id: "c", pages: [][]int{{3}}, open: true},
			}}
			broken := true
			s.fail = func(_, shard string) string {
				if broken && shard == "b" {
					return failure
				}
				return ""
			}
			c, l := newCheckpoint(), log{}
			r := s.reader(c, Options{})
			info, err := drive(t, r, c, &l, 3)
			if err != nil {
				t.Fatal(err)
			}
			if info.Failed == nil || info.CaughtUp() || !strings.Contains(info.Failed.Error(), "shard b") {
				t.Errorf("round info %+v", info)
			}
			wantValues(t, l, 1, 3)
			broken = false
			if info, err = drive(t, r, c, &l, 3); err != nil || !info.CaughtUp() {
				t.Errorf("after the failure: %+v, %v", info, err)
			}
			wantValues(t, l, 1, 3, 2)
		})
	}
}

func TestAFailedListingIsTriedAgain(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}}}
	n := 0
	s.fail = func(op, _ string) string {
		if n++; op == "DescribeStream" && n < 4 {
			return "LimitExceededException"
		}
		return ""
	}
	c, l := newCheckpoint(), log{}
	if info, err := drive(t, s.reader(c, Options{}), c, &l, 9); err != nil || !info.CaughtUp() {
		t.Fatalf("%+v, %v", info, err)
	}
	wantValues(t, l, 1)
}

func TestAnErrorThatWaitingDoesNotHealIsReturned(t *testing.T) {
	for _, op := range []string{"DescribeStream", "GetShardIterator", "GetRecords"} {
		t.Run(op, func(t *testing.T) {
			s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}}}
			s.fail = func(called, _ string) string {
				if called == op {
					return "AccessDeniedException"
				}
				return ""
			}
			c, l := newCheckpoint(), log{}
			if _, err := drive(t, s.reader(c, Options{}), c, &l, 1); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAServerThatStartsOverIsNotBelieved(t *testing.T) {
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1, 2}}, open: true, restarts: true}}}
	c, l := newCheckpoint(), log{}
	c.committed["a"] = pipeline.Position{Seq: seq(2)}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 1); err == nil || !strings.Contains(err.Error(), "shard a") {
		t.Errorf("error %v", err)
	}
	if len(l) > 0 {
		t.Error("records were emitted twice")
	}
}

func TestARecordThatLacksWhatItMustHaveIsAnErrorOfItsShard(t *testing.T) {
	const good = `"ApproximateCreationDateTime":1772438400,"Keys":{"id":{"S":"k"}},"NewImage":{"v":{"N":"1"}},"SequenceNumber":"100000000000000000001"`
	for name, test := range map[string]struct{ record, want string }{
		"body":     {`{"eventName":"INSERT"}`, "no sequence number"},
		"number":   {`{"eventName":"INSERT","dynamodb":{` + strings.ReplaceAll(good, "100000000000000000001", "") + `}}`, "no sequence number"},
		"keys":     {`{"eventName":"INSERT","dynamodb":{` + strings.ReplaceAll(good, `"Keys":{"id":{"S":"k"}},`, "") + `}}`, "no keys"},
		"time":     {`{"eventName":"INSERT","dynamodb":{` + strings.ReplaceAll(good, `"ApproximateCreationDateTime":1772438400,`, "") + `}}`, "no creation time"},
		"image":    {`{"eventName":"MODIFY","dynamodb":{` + strings.ReplaceAll(good, `"NewImage":{"v":{"N":"1"}},`, "") + `}}`, "no new image"},
		"an event": {`{"eventName":"RENAME","dynamodb":{` + good + `}}`, "RENAME"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stub{shards: []*stubShard{{id: "shard-a", pages: [][]int{{1}}, open: true, records: map[int]string{1: test.record}}}}
			c, l := newCheckpoint(), log{}
			_, err := drive(t, s.reader(c, Options{}), c, &l, 1)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "shard-a") {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func TestOnlyTheServiceItselfExpiresItems(t *testing.T) {
	remove := func(n int, identity string) string {
		return fmt.Sprintf(`{"eventName":"REMOVE",%s"dynamodb":{"ApproximateCreationDateTime":1772438400,"Keys":{"id":{"S":"k"}},"SequenceNumber":"%s"}}`, identity, seq(n))
	}
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1, 2, 3, 4}}, open: true, records: map[int]string{
		1: remove(1, `"userIdentity":{"Type":"Service","PrincipalId":"dynamodb.amazonaws.com"},`),
		2: remove(2, ``),
		3: remove(3, `"userIdentity":{"Type":"Service","PrincipalId":"other.amazonaws.com"},`),
		4: remove(4, `"userIdentity":{"Type":"User","PrincipalId":"dynamodb.amazonaws.com"},`),
	}}}}
	c, l := newCheckpoint(), log{}
	if _, err := drive(t, s.reader(c, Options{}), c, &l, 1); err != nil {
		t.Fatal(err)
	}
	for i, rec := range l.records() {
		if rec.Expired != (i == 0) || rec.New != nil {
			t.Errorf("record %d: expired %t, image %v", i, rec.Expired, rec.New)
		}
	}
}

func TestReplayReadsOnThroughEmptyPagesAndThrottling(t *testing.T) {
	pages := [][]int{{1}}
	for range 30 {
		pages = append(pages, nil)
	}
	pages = append(pages, []int{2, 3})
	s := &stub{shards: []*stubShard{{id: "a", pages: pages, open: true}}}
	n := 0
	s.fail = func(string, string) string {
		if n++; n%3 == 0 {
			return "InternalServerError"
		}
		return ""
	}
	var l log
	r := s.reader(newCheckpoint(), Options{Floor: time.Microsecond})
	if err := r.Replay(t.Context(), []pipeline.Range{{Shard: "a", First: seq(1), Last: seq(2)}}, l.emit); err != nil {
		t.Fatal(err)
	}
	wantValues(t, l, 1, 2)
}

func TestReplayDoesNotTakeOddPagesForRecordsThatAgedOut(t *testing.T) {
	for name, test := range map[string]struct {
		pages       [][]int
		open        bool
		first, last int
		passes      bool // it may be there later
	}{
		"first":            {[][]int{{1, 3, 4}}, true, 2, 4, false},
		"last, jumped":     {[][]int{{1, 2}, {4}}, true, 1, 3, false},
		"last, in a page":  {[][]int{{1, 2, 4}}, true, 1, 3, false},
		"last, at the end": {[][]int{{1, 2}}, false, 1, 3, false},
		"last, at the tip": {[][]int{{1, 2}}, true, 1, 3, true},
		"all":              {[][]int{{}}, true, 1, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stub{shards: []*stubShard{{id: "a", pages: test.pages, open: test.open}}}
				r := s.reader(newCheckpoint(), Options{})
				emitted := map[pipeline.SequenceNumber]bool{}
				err := r.Replay(t.Context(), []pipeline.Range{{Shard: "a", First: seq(test.first), Last: seq(test.last)}}, func(b pipeline.Batch) error {
					for _, rec := range b.Records {
						if rec.Seq.Compare(seq(test.last)) > 0 || emitted[rec.Seq] {
							t.Errorf("record %s behind the range was emitted, or twice", rec.Seq)
						}
						emitted[rec.Seq] = true
					}
					return nil
				})
				if err == nil || errors.Is(err, pipeline.ErrTrimmed) {
					t.Fatalf("error %v: nothing proves that records aged out", err)
				}
				if _, person := errors.AsType[*pipeline.PersonError](err); person == test.passes {
					t.Errorf("error %v, a person is needed: %t", err, person)
				}
				for _, word := range []string{"shard a", string(seq(test.first)), string(seq(test.last))} {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("error %q does not name %s", err, word)
					}
				}
			})
		})
	}
}

func TestReplayReadsAnOddPageAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &stubShard{id: "a", pages: [][]int{{1, 2}, {3}}, open: true}
		s := &stub{shards: []*stubShard{a}, noNext: 1} // as of a server that was started anew
		var l log
		if err := s.reader(newCheckpoint(), Options{}).Replay(t.Context(), []pipeline.Range{{Shard: "a", First: seq(1), Last: seq(3)}}, l.emit); err != nil {
			t.Fatal(err)
		}
		wantValues(t, l, 1, 2, 3)
	})
}

func TestReplayFindsOutThatRecordsAgedOutBetweenTwoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &stubShard{id: "a", pages: [][]int{{1, 2}, {3}}, open: true}
		s := &stub{shards: []*stubShard{a}}
		s.fail = func(op, _ string) string {
			if op == "GetRecords" {
				a.trimmed = 2 // behind the iterator: the page begins with 3
			}
			return ""
		}
		err := s.reader(newCheckpoint(), Options{}).Replay(t.Context(), []pipeline.Range{{Shard: "a", First: seq(1), Last: seq(3)}}, func(pipeline.Batch) error { return nil })
		wantTrimmed(t, err, "shard a", string(seq(1)), string(seq(3)))
	})
}

func TestReplayDoesNotBelieveOneAnswerThatAShardIsGone(t *testing.T) {
	for name, test := range map[string]struct {
		answers int // that say so; -1: all
		gone    bool
		trimmed bool
	}{
		"once":                        {1, false, false},
		"twice, and the listing not":  {2, false, false},
		"always, and the listing too": {-1, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1, 2}}, open: true, gone: test.gone}, {id: "b", open: true}}}
				said := 0
				s.fail = func(op, shard string) string {
					if op == "GetShardIterator" && shard == "a" && (said < test.answers || test.answers < 0) {
						said++
						return "ResourceNotFoundException"
					}
					return ""
				}
				var l log
				err := s.reader(newCheckpoint(), Options{}).Replay(t.Context(), []pipeline.Range{{Shard: "a", First: seq(1), Last: seq(2)}}, l.emit)
				if test.trimmed {
					wantTrimmed(t, err, "shard a")
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				wantValues(t, l, 1, 2)
			})
		})
	}
}

func TestReplayOfAStreamThatIsGoneAsksForTheTablesOthers(t *testing.T) {
	for name, test := range map[string]struct {
		streams []string
		trimmed bool
	}{
		"none: an endpoint of another region, say": {nil, false},
		"this one is among them":                   {[]string{stubARN + "1", stubARN}, false},
		"another":                                  {[]string{stubARN + "1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}}, open: true}}, streams: test.streams}
				s.fail = func(op, _ string) string {
					if op == "ListStreams" {
						return ""
					}
					return "ResourceNotFoundException"
				}
				err := s.reader(newCheckpoint(), Options{}).Replay(t.Context(), []pipeline.Range{{Shard: "a", First: seq(1), Last: seq(1)}}, func(pipeline.Batch) error { return nil })
				if _, person := errors.AsType[*pipeline.PersonError](err); !person || errors.Is(err, pipeline.ErrTrimmed) != test.trimmed {
					t.Errorf("error %v, proof wanted %t", err, test.trimmed)
				}
			})
		})
	}
}

func TestPagesAreReadAheadOfNothing(t *testing.T) {
	// While a batch is being emitted, nothing else of its shard may be read: back-pressure.
	s := &stub{shards: []*stubShard{{id: "a", pages: [][]int{{1}, {2}}, open: true}}}
	c := newCheckpoint()
	r := s.reader(c, Options{})
	for want := 1; want <= 2; want++ {
		_, err := r.Round(t.Context(), func(pipeline.Batch) error {
			if n := s.calls["GetRecords a"]; n != want {
				t.Errorf("%d pages read while page %d is emitted", n, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBackoffGrowsToItsLimit(t *testing.T) {
	for n := range 80 {
		d := backoff(n, time.Second, time.Minute)
		full := time.Minute
		if n < 6 {
			full = time.Second << n
		}
		if d < full/2 || d > full {
			t.Errorf("wait %d is %v", n, d)
		}
	}
}
