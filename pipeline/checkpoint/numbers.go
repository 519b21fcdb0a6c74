package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// numbers are rising, disjoint runs of numbers. An outage gives up many windows in a row, and few
// runs fit where many numbers would not.
type numbers [][2]int64

// parseNumbers reads the stored form: 3,7-9.
func parseNumbers(s string) (numbers, error) {
	var ns numbers
	if s == "" {
		return nil, nil
	}
	for f := range strings.SplitSeq(s, ",") {
		from, to, run := strings.Cut(f, "-")
		if !run {
			to = from
		}
		a, errA := strconv.ParseInt(from, 10, 64)
		b, errB := strconv.ParseInt(to, 10, 64)
		if errA != nil || errB != nil || a < 1 || b < a || len(ns) > 0 && a <= ns[len(ns)-1][1] {
			return nil, fmt.Errorf("%q are no rising numbers", s)
		}
		ns = append(ns, [2]int64{a, b})
	}
	return ns, nil
}

// add returns ns with n in it.
func (ns numbers) add(n int64) numbers {
	all := append(slices.Clone(ns), [2]int64{n, n})
	slices.SortFunc(all, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	merged := all[:1]
	for _, run := range all[1:] {
		if last := &merged[len(merged)-1]; run[0] <= last[1]+1 {
			last[1] = max(last[1], run[1])
		} else {
			merged = append(merged, run)
		}
	}
	return merged
}

// atMost returns ns in no more than that many runs: of the lowest it makes one, with what lies
// between them.
func (ns numbers) atMost(runs int) numbers {
	if len(ns) <= runs {
		return ns
	}
	low := len(ns) - runs
	return append(numbers{{ns[0][0], ns[low][1]}}, ns[low+1:]...)
}

func (ns numbers) has(n int64) bool {
	for _, run := range ns {
		if run[0] <= n && n <= run[1] {
			return true
		}
	}
	return false
}

// String returns the stored form.
func (ns numbers) String() string {
	var f []string
	for _, run := range ns {
		if run[0] == run[1] {
			f = append(f, strconv.FormatInt(run[0], 10))
		} else {
			f = append(f, fmt.Sprintf("%d-%d", run[0], run[1]))
		}
	}
	return strings.Join(f, ",")
}
