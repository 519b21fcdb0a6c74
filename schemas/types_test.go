package schemas

import (
	"strings"
	"testing"
)

func TestParseTypeReadsWhatStringWrites(t *testing.T) {
	for text, want := range map[string]string{
		"string": "string", "boolean": "boolean", "int": "int", "bigint": "bigint", "double": "double",
		"timestamp": "timestamp", "date": "date", "binary": "binary",
		"decimal(5,2)":                                "decimal(5,2)",
		" decimal( 38 , 0 ) ":                         "decimal(38,0)",
		"array<string>":                               "array<string>",
		"map<string,decimal(18,6)>":                   "map<string,decimal(18,6)>",
		"map< string , array<int> >":                  "map<string,array<int>>",
		"array<struct<a:int,b_2:map<string,double>>>": "array<struct<a:int,b_2:map<string,double>>>",
		"struct<date:date>":                           "struct<date:date>",
	} {
		typ, err := ParseType(text)
		if err != nil || typ.String() != want {
			t.Errorf("of %q: %v, %v, want %s", text, typ, err, want)
			continue
		}
		again, err := ParseType(typ.String())
		if err != nil || !again.Equal(typ) {
			t.Errorf("%s reads back as %v, %v", typ, again, err)
		}
	}
}

func TestParseTypeSaysWhatToWrite(t *testing.T) {
	for text, want := range map[string]string{
		"":                           `no type ""; write one of string, boolean, int, bigint, double, timestamp, date, binary, decimal, array, map, struct`,
		"strin":                      `no type "strin"; write string`,
		"STRING":                     `no type "STRING"; write string`,
		"bool":                       `no type "bool" here; write boolean`,
		"varchar(10)":                `no type "varchar" here; write string`,
		"float":                      `no type "float" here; write double or decimal(p,s)`,
		"int(11)":                    `int takes no argument; write int`,
		"int,":                       `"," is left over; write int`,
		"decimal":                    `"(" is missing; write decimal(precision,scale), as in decimal(5,2)`,
		"decimal(5)":                 `"," is missing; write decimal(precision,scale), as in decimal(5,2)`,
		"decimal(5,2":                `")" is missing; write decimal(precision,scale), as in decimal(5,2)`,
		"decimal(a,2)":               `precision and scale are whole numbers; write decimal(precision,scale), as in decimal(5,2)`,
		"decimal(0,0)":               `precision 0 is not within 1 and 38; write decimal(precision,scale), as in decimal(5,2)`,
		"decimal(39,0)":              `precision 39 is not within 1 and 38; write decimal(precision,scale), as in decimal(5,2)`,
		"decimal(5,6)":               `scale 6 is not within 0 and the precision, 5; write decimal(precision,scale), as in decimal(5,2)`,
		"decimal(5,-1)":              `scale -1 is not within 0 and the precision, 5; write decimal(precision,scale), as in decimal(5,2)`,
		"array":                      `"<" is missing; write array<element>, as in array<string>`,
		"array<string":               `">" is missing; write array<element>, as in array<string>`,
		"array<timestamp>":           `a timestamp inside another type has no encoding; write string, or give it a column of its own`,
		"map<int,string>":            `map keys are strings in DynamoDB, not "int"; write map<string,value>, as in map<string,decimal(18,6)>`,
		"map<string>":                `"," is missing; write map<string,value>, as in map<string,decimal(18,6)>`,
		"struct<>":                   `field name is empty; write lower case letters, digits and underscores`,
		"struct<a>":                  `":" is missing; write struct<name:type,…>, as in struct<code:int,text:string>`,
		"struct<A:int>":              `field name "A" has upper case letters, which Athena folds; write a`,
		"struct<a:int,a:int>":        `field "a" stands there twice; give each field a name of its own`,
		"struct<a:int,>":             `field name is empty; write lower case letters, digits and underscores`,
		strings.Repeat("array<", 40): `nested deeper than 32, which no DynamoDB item is`,
	} {
		_, err := ParseType(text)
		if err == nil || err.Error() != `type "`+text+`": `+want {
			t.Errorf("of %q: %v, want %s", text, err, want)
		}
	}
}

func TestTypesAreEqualInAllTheirParts(t *testing.T) {
	all := []string{"int", "decimal(5,2)", "decimal(5,3)", "decimal(6,2)", "array<int>", "array<string>", "map<string,int>",
		"struct<a:int>", "struct<a:string>", "struct<b:int>", "struct<a:int,b:int>"}
	for _, a := range all {
		for _, b := range all {
			ta, errA := ParseType(a)
			tb, errB := ParseType(b)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if ta.Equal(tb) != (a == b) {
				t.Errorf("%s equal to %s: %t", a, b, ta.Equal(tb))
			}
		}
	}
}
