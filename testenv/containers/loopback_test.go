//go:build integration && linux

package containers

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inodes are the sockets of the processes of a group.
func inodes(t *testing.T, group int) map[string]bool {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The name of the program may hold anything; behind it: state, parent, group.
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) < 3 || f[2] != fmt.Sprint(group) {
			continue
		}
		links, err := filepath.Glob(filepath.Dir(name) + "/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil {
				if inode, ok := strings.CutPrefix(to, "socket:["); ok {
					found[strings.TrimSuffix(inode, "]")] = true
				}
			}
		}
	}
	return found
}

// listening are the local addresses on which a group of processes takes connections or datagrams.
func listening(t *testing.T, group int) (addresses []netip.Addr) {
	t.Helper()
	ours := inodes(t, group)
	for _, table := range []struct{ file, state string }{{"tcp", "0A"}, {"tcp6", "0A"}, {"udp", "07"}, {"udp6", "07"}} {
		text, err := os.ReadFile("/proc/net/" + table.file)
		if err != nil {
			continue // no IPv6 on this machine
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == table.state && ours[f[9]] {
				addresses = append(addresses, address(t, f[1]))
			}
		}
	}
	return addresses
}

// address reads what the kernel writes as ADDRESS:PORT: words of four bytes, each a number of
// the machine's.
func address(t *testing.T, text string) netip.Addr {
	t.Helper()
	words, _, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(words)
	if err != nil {
		t.Fatalf("address %s: %v", text, err)
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		t.Fatalf("address %s has %d bytes", text, len(b))
	}
	return a.Unmap()
}

func TestPackagesListenOnLoopbackOnly(t *testing.T) {
	for kind := range packages {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			a := Start(t, kind)
			use(t, a)
			addresses := listening(t, a.process.cmd.Process.Pid)
			if len(addresses) == 0 {
				t.Fatal("no address found, and it answered")
			}
			for _, at := range addresses {
				if !at.IsLoopback() {
					t.Errorf("%s listens on %s", a, at)
				}
			}
			t.Logf("%s listens on %v", a, addresses)
		})
	}
}
