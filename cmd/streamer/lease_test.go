package main

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func (d *door) token(t *testing.T) string {
	t.Helper()
	return d.item(t, "lane#run-sensor_readings", "lane")["token"].(*types.AttributeValueMemberN).Value
}

// standsBy waits until a run has said that it waits for another.
func standsBy(t *testing.T, c *command) {
	t.Helper()
	until(t, "the run stands by", func() bool { return strings.Contains(c.stderr.String(), "standing by") })
}

func TestARunStandsByWhileAnotherHoldsTheLaneAndGoesOnWhenItHasEnded(t *testing.T) {
	file := roomClimate(t, 400)
	d := openDoor(t)
	half := &climateFile{name: writeLines(t, file.lines[:200]...), lines: file.lines[:200]}
	first := begin(t, "run")
	d.load(half)
	d.sealed(half)
	second := begin(t, "run")
	standsBy(t, second)
	if text := second.stderr.String(); !strings.Contains(text, hostText()) || !strings.Contains(text, "run-sensor_readings") {
		t.Errorf("it does not say who holds which lane: %q", text)
	}
	if got := d.token(t); got != "1" {
		t.Errorf("the token is %s while the first lives", got)
	}
	first.stop()
	first.exits(exitOK)
	d.load(file)
	d.sealed(file) // the lease is half a minute: it was released
	if got := d.token(t); got != "2" {
		t.Errorf("the token is %s", got)
	}
	second.stop()
	second.exits(exitOK)
	checkReadings(t, d.dir, file)
}

func TestAStandbyThatIsStoppedEnds(t *testing.T) {
	d := openDoor(t)
	first := begin(t, "run")
	until(t, "the run has begun", func() bool { return d.status().Lane.Started })
	second := begin(t, "run")
	standsBy(t, second)
	second.stop()
	second.exits(exitOK)
	first.stop()
	first.exits(exitOK)
}

// A holder that hangs, or is killed, changes nothing: that is what a standby goes by.
func TestAStandbyTakesTheLaneOfAHolderThatIsGone(t *testing.T) {
	d := openDoor(t)
	first := begin(t, "run")
	until(t, "the run has begun", func() bool { return d.status().Lane.Started })
	first.stop()
	first.exits(exitOK)
	// As a process leaves it that was killed.
	d.mark(t, "lane", "lease", &types.AttributeValueMemberN{Value: "7"})
	second := begin(t, "run", "--lease", "1s")
	standsBy(t, second)
	until(t, "it has the lane", func() bool { return d.token(t) == "2" })
	second.stop()
	second.exits(exitOK)
}

func TestARunThatLostItsLaneTakesItBackIfItStandsBy(t *testing.T) {
	file := roomClimate(t, 40)
	d := openDoor(t)
	first := begin(t, "run", "--standby", "--lease", "1s")
	until(t, "the run has begun", func() bool { return d.status().Lane.Started })
	second := begin(t, "run", "--take-over", "--lease", "1s")
	standsBy(t, first) // its renewal tells it: nothing is there to be begun
	second.stop()
	second.exits(exitOK)
	until(t, "it has the lane again", func() bool { return d.token(t) > "2" })
	d.load(file)
	d.sealed(file)
	first.stop()
	first.exits(exitOK)
	checkReadings(t, d.dir, file)
}

func TestAnIdleRunWhoseLaneIsTakenEnds(t *testing.T) {
	d := openDoor(t)
	first := begin(t, "run", "--lease", "1s")
	until(t, "the run has begun", func() bool { return d.status().Lane.Started })
	second := begin(t, "run", "--take-over")
	first.exits(exitPerson)
	if words := first.lastWords(); !strings.Contains(words, "another process") || !strings.Contains(words, "--standby") {
		t.Errorf("it ends with %q", words)
	}
	second.stop()
	second.exits(exitOK)
}
