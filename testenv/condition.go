package testenv

import (
	"strings"

	"github.com/truora/minidyn/interpreter/language"
)

// matches says whether the expression's condition holds for it; a nil expression holds
// for every item. An item that does not exist is an item without attributes.
func (b *binding) matches(e *expression, it item) (bool, error) {
	if e == nil {
		return true, nil
	}
	return b.holds(e.label, e.cond, it)
}

func (b *binding) holds(label string, c *condition, it item) (bool, error) {
	switch c.op {
	case language.AND, language.OR:
		l, err := b.holds(label, c.kids[0], it)
		if err != nil || l == (c.op == language.OR) {
			return l, err
		}
		return b.holds(label, c.kids[1], it)
	case language.NOT:
		r, err := b.holds(label, c.kids[0], it)
		return !r, err
	case "attribute_exists":
		_, ok := b.lookup(it, c.operands[0].path)
		return ok, nil
	case "attribute_not_exists":
		_, ok := b.lookup(it, c.operands[0].path)
		return !ok, nil
	case language.BETWEEN:
		return b.between(label, c, it)
	case language.IN:
		return b.in(c, it)
	case "attribute_type", "begins_with", "contains":
		return b.calls(label, c, it)
	}
	return b.compares(label, c, it)
}

func (b *binding) compares(label string, c *condition, it item) (bool, error) {
	l, lok, err := b.operand(it, &c.operands[0])
	if err != nil {
		return false, err
	}
	r, rok, err := b.operand(it, &c.operands[1])
	if err != nil {
		return false, err
	}
	if c.op == "=" {
		return lok && rok && l.equal(r), nil
	}
	if c.op == "<>" {
		// An attribute that is missing differs from every value.
		return !lok || !rok || !l.equal(r), nil
	}
	for i, v := range []value{l, r} {
		if c.operands[i].op == opValue && !ordered(v.kind) {
			return false, wrongOperand(label, c.op, v)
		}
	}
	if !lok || !rok {
		return false, nil
	}
	n, ok := l.cmp(r)
	if !ok {
		return false, nil
	}
	switch c.op {
	case "<":
		return n < 0, nil
	case "<=":
		return n <= 0, nil
	case ">":
		return n > 0, nil
	}
	return n >= 0, nil
}

func ordered(k kind) bool { return k == kindString || k == kindNumber || k == kindBinary }

func wrongOperand(label, op string, v value) error {
	return invalid("Invalid " + label + ": Incorrect operand type for operator or function; operator or function: " +
		op + ", operand type: " + v.kind.String())
}

func (b *binding) between(label string, c *condition, it item) (bool, error) {
	var v [3]value
	all := true
	for i := range c.operands {
		var ok bool
		var err error
		if v[i], ok, err = b.operand(it, &c.operands[i]); err != nil {
			return false, err
		}
		if c.operands[i].op == opValue && !ordered(v[i].kind) {
			return false, wrongOperand(label, c.op, v[i])
		}
		all = all && ok
	}
	if c.operands[1].op == opValue && c.operands[2].op == opValue {
		n, ok := v[1].cmp(v[2])
		if !ok {
			return false, invalid("Invalid " + label + ": The BETWEEN operator requires same data type for lower and upper bounds")
		}
		if n > 0 {
			return false, invalid("Invalid " + label + ": The BETWEEN operator requires upper bound to be greater than or equal to lower bound")
		}
	}
	if !all {
		return false, nil
	}
	lo, ok1 := v[1].cmp(v[0])
	hi, ok2 := v[0].cmp(v[2])
	return ok1 && ok2 && lo <= 0 && hi <= 0, nil
}

func (b *binding) in(c *condition, it item) (bool, error) {
	l, ok, err := b.operand(it, &c.operands[0])
	if err != nil || !ok {
		return false, err
	}
	for i := range c.operands[1:] {
		r, ok, err := b.operand(it, &c.operands[1+i])
		if err != nil {
			return false, err
		}
		if ok && l.equal(r) {
			return true, nil
		}
	}
	return false, nil
}

func (b *binding) calls(label string, c *condition, it item) (bool, error) {
	l, lok, err := b.operand(it, &c.operands[0])
	if err != nil {
		return false, err
	}
	r, rok, err := b.operand(it, &c.operands[1])
	if err != nil {
		return false, err
	}
	literal := c.operands[1].op == opValue
	switch c.op {
	case "attribute_type":
		if !literal || r.kind != kindString || kindOf(r.text) == 0 {
			return false, invalid("Invalid " + label + ": Invalid attribute type name found; type: " + r.text)
		}
		return lok && l.kind == kindOf(r.text), nil
	case "begins_with":
		if literal && r.kind != kindString && r.kind != kindBinary {
			return false, wrongOperand(label, c.op, r)
		}
		return lok && rok && l.kind == r.kind && (l.kind == kindString || l.kind == kindBinary) &&
			strings.HasPrefix(l.text, r.text), nil
	}
	if !lok || !rok {
		return false, nil
	}
	return contains(l, r), nil
}

// contains says whether the text l has the substring r, or the set or list l the member r.
func contains(l, r value) bool {
	if l.kind == kindString || l.kind == kindBinary {
		return l.kind == r.kind && strings.Contains(l.text, r.text)
	}
	for _, e := range l.list {
		if e.equal(r) {
			return true
		}
	}
	return false
}
