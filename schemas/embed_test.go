package schemas

import (
	"slices"
	"testing"
)

func TestShippedContractsParseAndAreDescribed(t *testing.T) {
	want := []string{"device_telemetry", "dispositivos", "lecturas", "sensor_readings"}
	if got := Names(); !slices.Equal(got, want) {
		t.Fatalf("contracts are %v, want %v", got, want)
	}
	for _, name := range Names() {
		c := load(t, name)
		if c.Name != name {
			t.Errorf("%s.yaml describes %s", name, c.Name)
		}
		if c.Description == "" {
			t.Errorf("%s has no description", name)
		}
		for _, col := range c.Columns {
			if col.Description == "" {
				t.Errorf("%s.%s has no description", name, col.Name)
			}
			// A reading without its unit is not a number one can average with another.
			if col.Type.Numeric() && col.Unit == "" && col.Name != "valor" {
				t.Errorf("%s.%s has no unit", name, col.Name)
			}
		}
		for _, table := range c.Tables() {
			if table.Description == "" {
				t.Errorf("%s has no description", table.Name)
			}
		}
	}
}

func TestLoadOfAnUnknownNameListsTheKnownOnes(t *testing.T) {
	for _, name := range []string{"nothing", "", "../schemas/lecturas", "lecturas.yaml"} {
		_, err := Load(name)
		want := `load contract "` + name + `": no such contract; write one of device_telemetry, dispositivos, lecturas, sensor_readings`
		if err == nil || err.Error() != want {
			t.Errorf("error is %v, want %s", err, want)
		}
	}
}
