package schemas

// Roles of the lake tables that tell of the pipeline itself, whatever tables it moves.
const (
	Windows Role = "windows"
	Gaps    Role = "gaps"
)

// AsOf is the column of the pipeline's own tables that says when a row was true.
const AsOf = "as_of"

// OwnTables are the lake tables that tell of the pipeline itself, one of each in a lake. Each hour
// adds to them what was stored then: rows of an earlier as_of are history.
func OwnTables() []Table { return []Table{windowsTable(), gapsTable()} }

// LatestName is the name of the view of one of the pipeline's own tables that shows what was stored
// last; "" for a contract's table.
func (t Table) LatestName() string {
	if t.Role != Windows && t.Role != Gaps {
		return ""
	}
	return t.Name + latestSuffix
}

// OneOf are the columns of one of the pipeline's own tables that say of what a row tells: the view of
// the latest shows the rows of the last as_of of each. Nil for a contract's table.
func (t Table) OneOf() []string {
	switch t.Role {
	case Windows:
		return []string{"checkpoint", "lane"} // all that is stored of a lane is written at once
	case Gaps:
		return []string{"stream", "gap_id"}
	}
	return nil
}

// isOwnName reports whether a table of the pipeline itself has the name.
func isOwnName(name string) bool {
	for _, t := range OwnTables() {
		if name == t.Name {
			return true
		}
	}
	return false
}

func ownTable(role Role, description string, columns ...Column) Table {
	return Table{
		Name: string(role), Role: role, Description: description, TimeColumn: AsOf,
		Columns: append([]Column{
			column(AsOf, Timestamp, "When this was stored, by the clock of the service that stores it"),
			column("checkpoint", String, "Checkpoint table that stored it"),
		}, columns...),
		Layout: Layout{Unit: Day, FirstPartition: firstRecord}, // an object an hour is little enough
	}
}

func column(name string, kind Kind, description string) Column {
	return Column{Name: name, Type: Type{Kind: kind}, Description: description}
}

func windowsTable() Table {
	return ownTable(Windows, "Windows of each lane by state, each hour",
		column("lane", String, "Sequence of windows"),
		column("incarnation", String, "Life of the lane in which they are numbered"),
		nullable(column("stream", String, "ARN of the stream, while the window is stored")),
		column("first_window", BigInt, "Number of the window, or of the first of several in one state"),
		column("last_window", BigInt, "Number of the last of them"),
		column("state", String, "pending, committed, sealed, void (given up), folded (sealed, and its item is gone) or unknown"),
		nullable(column("part_count", BigInt, "Parts, while the window is stored")),
		nullable(column("row_count", BigInt, "Rows of the table itself, while the window is stored")),
		nullable(column("change_count", BigInt, "Rows of changes")),
		nullable(column("tombstone_count", BigInt, "Rows of tombstones")),
		nullable(column("quarantined_count", BigInt, "Rows of quarantine")),
		nullable(column("ignored_count", BigInt, "Records that the contract refused")),
		nullable(column("oldest_record_at", Timestamp, "Lowest creation time of its records")),
		nullable(column("committed_at", Timestamp, "When the window was committed")),
		nullable(column("landed_at", Timestamp, "When its parts were landed last")),
		nullable(column("landed_again", BigInt, "How often they were landed after the commit")),
		nullable(column("has_gaps", Boolean, "Whether gaps were opened of its records")),
	)
}

func gapsTable() Table {
	return ownTable(Gaps, "Entries of the gap ledger, each hour: records that aged out before they were read or landed",
		column("gap_id", String, "Name of the gap, unique within its stream"),
		column("stream", String, "ARN of the stream"),
		column("shard", String, "Shard of the missing records"),
		nullable(column("lane", String, "Lane that owned the shard when the gap was found")),
		column("state", String, "open, repairing or closed"),
		column("cause", String, "trimmed, vanished, window, rebuilt, disabled or discarded"),
		nullable(column("after_seq", String, "Sequence number of the last record read before it")),
		nullable(column("before_seq", String, "Sequence number of the first record read after it")),
		nullable(column("first_seq", String, "Sequence number of the first missing record, where it is known")),
		nullable(column("last_seq", String, "Sequence number of the last missing record, where it is known")),
		nullable(column("created_from", Timestamp, "What was created before it is not missing")),
		nullable(column("created_to", Timestamp, "What was created after it is not missing")),
		nullable(column("window_id", String, "Window of the missing records, if one was begun: lane/incarnation/n")),
		column("detected_at", Timestamp, "When it was found"),
		nullable(column("evidence", String, "How it was closed")),
	)
}
