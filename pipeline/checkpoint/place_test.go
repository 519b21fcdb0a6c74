package checkpoint

import (
	"testing"

	"telemetrylake/pipeline/pipelinetest"
)

func TestStreamLanesLandInALakeInOneWay(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			const one, other = "s3://lake/", "dir:/lake"
			for _, step := range []struct {
				lake  string
				way   Way
				taken bool
			}{
				{one, AtOnce, true}, {one, AtOnce, true}, {one, ThroughStaging, false}, {one, AtOnce, true},
				{other, ThroughStaging, true}, {other, AtOnce, false},
			} {
				err := s.LandIn(t.Context(), step.lake, step.way)
				if step.taken && err != nil {
					t.Errorf("%s in %s: %v", step.way, step.lake, err)
				}
				if !step.taken {
					pipelinetest.NeedsPerson(t, string(step.way)+" in "+step.lake, err)
				}
			}
		})
	}
}
