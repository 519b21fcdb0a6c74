package testenv

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/truora/minidyn/interpreter/language"
)

// checkOverlap refuses paths of which one leads to or through another's end. It sees
// the paths as written; two spellings of one attribute are found by update.
func checkOverlap(label string, paths []path, actions []action) error {
	all := slices.Clone(paths)
	for _, a := range actions {
		all = append(all, a.path)
	}
	for i, p := range all {
		for _, q := range all[:i] {
			if overlap(p, q) {
				return invalid("Invalid " + label + ": Two document paths overlap with each other; must remove or rewrite one of these paths; path one: [" +
					q.String() + "], path two: [" + p.String() + "]")
			}
		}
	}
	return nil
}

func overlap(p, q path) bool {
	n := min(len(p), len(q))
	return slices.Equal(p[:n], q[:n])
}

func (p path) String() string {
	var parts []string
	for _, s := range p {
		if s.name == "" {
			parts = append(parts, "["+strconv.Itoa(s.index)+"]")
		} else {
			parts = append(parts, s.name)
		}
	}
	return strings.Join(parts, ", ")
}

// resolve replaces the placeholders of a path.
func (b *binding) resolve(p path) path {
	out := slices.Clone(p)
	for i := range out {
		out[i].name = b.name(out[i])
	}
	return out
}

const (
	wrongType   = "An operand in the update expression has an incorrect data type"
	wrongPath   = "The document path provided in the update expression is invalid for update"
	missingPath = "The provided expression refers to an attribute that does not exist in the item"
)

// computed evaluates the operands that only updates have.
func (b *binding) computed(it item, o *operand) (value, bool, error) {
	if o.op == opIfNotExists {
		if v, ok := b.lookup(it, o.path); ok {
			return v, true, nil
		}
		return b.operand(it, &o.args[0])
	}
	l, lok, err := b.operand(it, &o.args[0])
	if err != nil {
		return value{}, false, err
	}
	r, rok, err := b.operand(it, &o.args[1])
	if err != nil {
		return value{}, false, err
	}
	if !lok || !rok {
		return value{}, false, invalid(missingPath)
	}
	if o.op == opListAppend {
		if l.kind != kindList || r.kind != kindList {
			return value{}, false, invalid(wrongType)
		}
		return value{kind: kindList, list: slices.Concat(l.list, r.list)}, true, nil
	}
	if l.kind != kindNumber || r.kind != kindNumber {
		return value{}, false, invalid(wrongType)
	}
	sum, err := addNumbers(l.text, r.text, o.op == opMinus)
	return value{kind: kindNumber, text: sum}, true, err
}

// update returns what the update expression makes of old, and the paths it touched. All
// actions see the old item; old itself is not changed.
func (b *binding) update(e *expression, old item) (item, []path, error) {
	if e == nil {
		return old, nil, nil
	}
	type change struct {
		action
		set value
	}
	changes := make([]change, len(e.actions))
	touched := make([]path, len(e.actions))
	for i, a := range e.actions {
		a.path = b.resolve(a.path)
		touched[i] = a.path
		for _, p := range touched[:i] {
			if overlap(p, a.path) {
				return nil, nil, checkOverlap(e.label, []path{p, a.path}, nil)
			}
		}
		changes[i].action = a
		if a.verb == language.REMOVE {
			continue
		}
		v, ok, err := b.operand(old, &a.value)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			return nil, nil, invalid(missingPath)
		}
		current, exists := b.lookup(old, a.path)
		switch a.verb {
		case language.ADD:
			v, err = addTo(current, exists, v)
		case language.DELETE:
			v, err = deleteFrom(current, exists, v)
		}
		if err != nil {
			return nil, nil, err
		}
		changes[i].set = v
	}
	// A higher index goes first, so that removing one does not move the others.
	slices.SortStableFunc(changes, func(x, y change) int {
		if x.verb != language.REMOVE || y.verb != language.REMOVE {
			return order(x.verb) - order(y.verb)
		}
		return slices.CompareFunc(y.path, x.path, func(s, t step) int {
			return cmp.Or(strings.Compare(s.name, t.name), s.index-t.index)
		})
	})
	root := value{kind: kindMap, attr: old}
	for _, c := range changes {
		v := &c.set
		if c.verb == language.REMOVE || c.set.kind == 0 {
			v = nil
		}
		var err error
		if root, err = assign(root, c.path, v); err != nil {
			return nil, nil, err
		}
	}
	return root.attr, touched, nil
}

func order(verb language.TokenType) int {
	if verb == language.REMOVE {
		return 1
	}
	return 0
}

// addTo is ADD: a number is added to, a set is joined.
func addTo(current value, exists bool, v value) (value, error) {
	if v.kind != kindNumber && v.kind.element() == 0 {
		return value{}, invalid("Invalid UpdateExpression: Incorrect operand type for operator or function; operator: ADD, operand type: " + v.kind.String())
	}
	if !exists {
		return v, nil
	}
	if current.kind != v.kind {
		return value{}, invalid(wrongType)
	}
	if v.kind == kindNumber {
		sum, err := addNumbers(current.text, v.text, false)
		return value{kind: kindNumber, text: sum}, err
	}
	set := slices.Concat(current.list, v.list)
	sortSet(set)
	set = slices.CompactFunc(set, value.equal)
	return value{kind: v.kind, list: set}, nil
}

// deleteFrom is DELETE: the zero value says that nothing is left or was there.
func deleteFrom(current value, exists bool, v value) (value, error) {
	if v.kind.element() == 0 {
		return value{}, invalid("Invalid UpdateExpression: Incorrect operand type for operator or function; operator: DELETE, operand type: " + v.kind.String())
	}
	if !exists {
		return value{}, nil
	}
	if current.kind != v.kind {
		return value{}, invalid(wrongType)
	}
	left := value{kind: v.kind}
	for _, e := range current.list {
		if !slices.ContainsFunc(v.list, e.equal) {
			left.list = append(left.list, e)
		}
	}
	if len(left.list) == 0 {
		return value{}, nil
	}
	return left, nil
}

// assign returns v with the value at p set to x, or removed when x is nil. It copies
// what it changes. Only the last step may be missing.
func assign(v value, p path, x *value) (value, error) {
	s, last := p[0], len(p) == 1
	switch {
	case s.name != "" && v.kind == kindMap:
		attr := slices.Clone(v.attr)
		inner, ok := attr.get(s.name)
		switch {
		case last && x == nil:
			attr = attr.without(s.name)
		case last:
			attr = attr.with(s.name, *x)
		case !ok:
			return v, invalid(wrongPath)
		default:
			inner, err := assign(inner, p[1:], x)
			if err != nil {
				return v, err
			}
			attr = attr.with(s.name, inner)
		}
		return value{kind: kindMap, attr: attr}, nil
	case s.name == "" && v.kind == kindList:
		list := slices.Clone(v.list)
		switch {
		case last && x == nil:
			if s.index < len(list) {
				list = slices.Delete(list, s.index, s.index+1)
			}
		case last && s.index >= len(list):
			list = append(list, *x) // beyond the end is at the end
		case last:
			list[s.index] = *x
		case s.index >= len(list):
			return v, invalid(wrongPath)
		default:
			inner, err := assign(list[s.index], p[1:], x)
			if err != nil {
				return v, err
			}
			list[s.index] = inner
		}
		return value{kind: kindList, list: list}, nil
	}
	return v, invalid(wrongPath)
}

// project returns the parts of it that the paths name. Members of lists keep their
// order and close up.
func project(it item, paths []path) item {
	v := projectValue(value{kind: kindMap, attr: it}, paths)
	return v.attr
}

func projectValue(v value, paths []path) value {
	out := value{kind: v.kind}
	if v.kind == kindMap {
		for i, a := range v.attr {
			rest, whole := descend(paths, step{name: a.name})
			switch {
			case whole:
				out.attr = append(out.attr, v.attr[i])
			case len(rest) > 0:
				if inner := projectValue(a.value, rest); inner.attr != nil || inner.list != nil {
					out.attr = append(out.attr, attribute{a.name, inner})
				}
			}
		}
		return out
	}
	if v.kind != kindList {
		return out
	}
	for i, e := range v.list {
		rest, whole := descend(paths, step{index: i})
		switch {
		case whole:
			out.list = append(out.list, e)
		case len(rest) > 0:
			if inner := projectValue(e, rest); inner.attr != nil || inner.list != nil {
				out.list = append(out.list, inner)
			}
		}
	}
	return out
}

// descend returns what is left of the paths that start with s, and whether one ends there.
func descend(paths []path, s step) (rest []path, whole bool) {
	for _, p := range paths {
		if p[0] != s {
			continue
		}
		if len(p) == 1 {
			return nil, true
		}
		rest = append(rest, p[1:])
	}
	return rest, false
}
