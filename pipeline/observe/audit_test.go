package observe_test

import (
	"testing"

	"telemetrylake/pipeline/observe"
)

func TestAuditsAreCounted(t *testing.T) {
	o, _ := watched(observe.Options{})
	check(t, o, map[string]string{"streamer_windows_landed_again_total": "0", "streamer_given_up_parts_total": "0"})
	o.Audited(observe.Audit{Again: 2})
	o.Audited(observe.Audit{Again: 1, GivenUp: 5})
	check(t, o, map[string]string{"streamer_windows_landed_again_total": "3", "streamer_given_up_parts_total": "5"})
}
