package testenv

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// How a key becomes a path below its bucket's folder. Between slashes a key's
// segments stand literally, so `dt=2026-11-30/x.parquet` is that very path.
// What a file system cannot hold is escaped, always behind a percent sign, which
// is itself written %25:
//
//	%XX   a byte below 0x20, 0x7f, a backslash or a percent sign
//	%2E   the dots of a segment that is "." or "..", and a dot after %+
//	%e    the empty segment (a key with "//", or that begins or ends with "/")
//	%+    at the end of a folder's name: the segment goes on in the folder, since
//	      more than maxSegment bytes do not fit one name
//	%o    at the end of a file's name: the object "a" where the folder "a" has to
//	      stand too, because of a key like "a/b"
//
// A file whose name is no spelling of a key by these rules is not an object.
// The folder must tell upper from lower case.
const (
	emptySegment = "%e"
	continued    = "%+"
	besideFolder = "%o"
	maxSegment   = 200
)

const upperHex = "0123456789ABCDEF"

// keyToPath is the slash-separated path of a key, without besideFolder.
func keyToPath(key string) string {
	var b strings.Builder
	for i, segment := range strings.Split(key, "/") {
		if i > 0 {
			b.WriteByte('/')
		}
		writeSegment(&b, segment)
	}
	return b.String()
}

func writeSegment(b *strings.Builder, segment string) {
	switch segment {
	case "":
		b.WriteString(emptySegment)
		return
	case ".", "..":
		b.WriteString(strings.Repeat("%2E", len(segment)))
		return
	}
	width := 0 // bytes of the current name
	for i := 0; i < len(segment); {
		r, n := utf8.DecodeRuneInString(segment[i:])
		// A chunk that is only dots would be a step in the tree: no chunk after the
		// first begins with one.
		dot := r == '.' && i > 0 && (width == 0 || width+1 > maxSegment)
		escape := dot || r < 0x20 || r == 0x7f || r == '%' || r == '\\' || r == utf8.RuneError && n == 1
		w := n
		if escape {
			w = 3
		}
		if width+w > maxSegment {
			b.WriteString(continued + "/")
			width = 0
		}
		if escape {
			b.WriteByte('%')
			b.WriteByte(upperHex[segment[i]>>4])
			b.WriteByte(upperHex[segment[i]&15])
		} else {
			b.WriteString(segment[i : i+n])
		}
		width += w
		i += n
	}
}

// nameToSegment undoes writeSegment for one name (a chunk of a continued segment
// without its mark). It is lenient: who reads a folder compares keyToPath of the
// whole key with the path that was found.
func nameToSegment(name string) (segment string, ok bool) {
	if name == emptySegment {
		return "", true
	}
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			b.WriteByte(name[i])
			continue
		}
		if i+2 >= len(name) {
			return "", false
		}
		c, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), true
}
