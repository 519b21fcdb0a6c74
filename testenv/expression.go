package testenv

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/truora/minidyn/interpreter/language"
)

// Expressions are read by minidyn's lexer and parser and evaluated here. Its evaluator
// is not used: it holds every number as a float64, so that two 38-digit numbers which
// differ in their last digits are equal to it and sums of decimals are rounded; it also
// copies the whole item for each call. What is compiled here is kept by its text, because
// programs use few expressions many times.

// An expression is one compiled text. Exactly one of cond, actions and paths is used.
type expression struct {
	cond    *condition
	actions []action
	paths   []path

	label         string   // ConditionExpression, UpdateExpression, … for error texts
	names, values []string // placeholders it uses: #name, :value
}

// A path is a document path as written: placeholders are not yet replaced.
type path []step

// step is a name, or an index into a list when name is empty.
type step struct {
	name  string
	index int
}

// operand is what conditions compare and updates assign.
type operand struct {
	op    byte   // one of the op constants
	value string // placeholder of opValue
	path  path
	args  []operand
}

const (
	opValue       = 'v'
	opPath        = 'p'
	opSize        = 's' // size(path)
	opIfNotExists = 'i' // if_not_exists(path, args[0])
	opListAppend  = 'l' // list_append(args[0], args[1])
	opPlus        = '+'
	opMinus       = '-'
)

// condition is a node of a compiled condition.
type condition struct {
	op       string // AND OR NOT = <> < <= > >= BETWEEN IN or a function's name
	kids     []*condition
	operands []operand
}

// action is one action of an update expression.
type action struct {
	verb  language.TokenType // SET, REMOVE, ADD or DELETE
	path  path
	value operand // not of REMOVE
}

// expressions compiles and remembers. Safe for concurrent use.
type expressions struct {
	mu    sync.RWMutex
	known map[[2]string]*expression
}

// maxKnown bounds the memory for programs that write values into expressions.
const maxKnown = 4096

// The parameters that hold an expression.
const (
	labelCondition  = "ConditionExpression"
	labelFilter     = "FilterExpression"
	labelKey        = "KeyConditionExpression"
	labelUpdate     = "UpdateExpression"
	labelProjection = "ProjectionExpression"
)

// compile returns the expression in text, which is the value of the parameter label;
// nil for a parameter that is absent.
func (x *expressions) compile(label string, n *node) (*expression, error) {
	if n.absent() {
		return nil, nil
	}
	if n.kind != '"' {
		return nil, serialization(label + " must be a string")
	}
	text := n.text
	if text == "" {
		return nil, invalid("Invalid " + label + ": The expression can not be empty;")
	}
	id := [2]string{label, text}
	x.mu.RLock()
	e := x.known[id]
	x.mu.RUnlock()
	if e != nil {
		return e, nil
	}
	// The text shares memory with the whole request, which must not be kept alive.
	text = strings.Clone(text)
	e, err := compile(label, text)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.known == nil || len(x.known) >= maxKnown {
		x.known = make(map[[2]string]*expression)
	}
	x.known[[2]string{label, text}] = e
	return e, nil
}

func compile(label, text string) (*expression, error) {
	if len(text) > 4096 {
		return nil, invalid("Invalid " + label + ": Expression size has exceeded the maximum allowed size; expression size: " + strconv.Itoa(len(text)))
	}
	c := &compiler{label: label}
	e := &expression{label: label}
	var p *language.Parser
	switch label {
	case labelUpdate:
		p = language.NewUpdateParser(language.NewLexer(text))
		s := p.ParseUpdateExpression()
		if len(p.Errors()) > 0 {
			break
		}
		u, ok := s.Expression.(*language.UpdateExpression)
		if !ok || len(u.Expressions) == 0 {
			return nil, c.syntax(text)
		}
		for _, a := range u.Expressions {
			e.actions = append(e.actions, c.action(a.(*language.ActionExpression)))
		}
	case labelProjection:
		p = language.NewParser(language.NewLexer(text))
		list := p.ParseProjectionExpression()
		if len(p.Errors()) > 0 {
			break
		}
		for _, x := range list {
			e.paths = append(e.paths, c.path(x))
		}
	default:
		p = language.NewParser(language.NewLexer(text))
		s := p.ParseConditionalExpression()
		if len(p.Errors()) > 0 {
			break
		}
		e.cond = c.condition(s.Expression)
	}
	if len(p.Errors()) > 0 {
		return nil, c.syntax(text)
	}
	if c.err != nil {
		return nil, c.err
	}
	// The parser drops what follows a complete condition. Every identifier of the text
	// must therefore have come out of it.
	if n := countIdentifiers(text); n != c.identifiers {
		return nil, c.syntax(text)
	}
	if err := checkOverlap(label, e.paths, e.actions); err != nil {
		return nil, err
	}
	e.names, e.values = c.names, c.values
	return e, nil
}

func countIdentifiers(text string) int {
	n := 0
	l := language.NewLexer(text)
	for {
		switch l.NextToken().Type {
		case language.EOF:
			return n
		case language.IDENT:
			n++
		}
	}
}

// compiler turns the parser's tree into ours and notes the first error.
type compiler struct {
	label         string
	identifiers   int
	names, values []string
	err           error
}

func (c *compiler) syntax(text string) error {
	return invalid("Invalid " + c.label + ": Syntax error; expression: " + text)
}

func (c *compiler) fail(message string) {
	if c.err == nil {
		c.err = invalid("Invalid " + c.label + ": " + message)
	}
}

var comparators = []string{"=", "<>", "<", "<=", ">", ">="}

func (c *compiler) condition(x language.Expression) *condition {
	switch x := x.(type) {
	case *language.InfixExpression:
		if x.Operator == language.AND || x.Operator == language.OR {
			return &condition{op: x.Operator, kids: []*condition{c.condition(x.Left), c.condition(x.Right)}}
		}
		if slices.Contains(comparators, x.Operator) {
			return &condition{op: x.Operator, operands: []operand{c.operand(x.Left), c.operand(x.Right)}}
		}
	case *language.PrefixExpression:
		return &condition{op: language.NOT, kids: []*condition{c.condition(x.Right)}}
	case *language.BetweenExpression:
		return &condition{op: language.BETWEEN, operands: c.operands(x.Left, x.Range[0], x.Range[1])}
	case *language.InExpression:
		if len(x.Range) == 0 || len(x.Range) > 100 {
			c.fail("The IN operator takes 1 to 100 operands; operands: " + strconv.Itoa(len(x.Range)))
		}
		return &condition{op: language.IN, operands: append(c.operands(x.Left), c.operands(x.Range...)...)}
	case *language.CallExpression:
		return c.function(x)
	}
	c.fail("Syntax error; a condition is expected")
	return &condition{}
}

func (c *compiler) function(x *language.CallExpression) *condition {
	name := c.functionName(x)
	f := &condition{op: name, operands: c.operands(x.Arguments...)}
	want := 2
	switch name {
	case "attribute_exists", "attribute_not_exists":
		want = 1
	case "attribute_type", "begins_with", "contains":
	default:
		c.fail("Invalid function name; function: " + name)
		return f
	}
	if len(f.operands) != want {
		c.fail("Incorrect number of operands for operator or function; operator or function: " + name +
			", number of operands: " + strconv.Itoa(len(f.operands)))
	} else if want == 1 && f.operands[0].op != opPath {
		c.fail("Operator or function requires a document path; operator or function: " + name)
	}
	return f
}

func (c *compiler) functionName(x *language.CallExpression) string {
	id, ok := x.Function.(*language.Identifier)
	if !ok {
		c.fail("Syntax error; a function name is expected")
		return ""
	}
	c.identifiers++
	return id.Value
}

func (c *compiler) operands(xs ...language.Expression) []operand {
	out := make([]operand, len(xs))
	for i, x := range xs {
		out[i] = c.operand(x)
	}
	return out
}

func (c *compiler) operand(x language.Expression) operand {
	switch x := x.(type) {
	case *language.Identifier:
		if strings.HasPrefix(x.Value, ":") {
			c.identifiers++
			c.values = append(c.values, x.Value)
			return operand{op: opValue, value: x.Value}
		}
		return operand{op: opPath, path: c.path(x)}
	case *language.IndexExpression:
		return operand{op: opPath, path: c.path(x)}
	case *language.InfixExpression:
		if c.label == labelUpdate && (x.Operator == "+" || x.Operator == "-") {
			return operand{op: x.Operator[0], args: c.operands(x.Left, x.Right)}
		}
	case *language.CallExpression:
		return c.call(x)
	}
	c.fail("Syntax error; an operand is expected")
	return operand{}
}

func (c *compiler) call(x *language.CallExpression) operand {
	name := c.functionName(x)
	args := c.operands(x.Arguments...)
	update := c.label == labelUpdate
	switch {
	case name == "size" && !update && len(args) == 1 && args[0].op == opPath:
		return operand{op: opSize, path: args[0].path}
	case name == "if_not_exists" && update && len(args) == 2 && args[0].op == opPath:
		return operand{op: opIfNotExists, path: args[0].path, args: args[1:]}
	case name == "list_append" && update && len(args) == 2:
		return operand{op: opListAppend, args: args}
	}
	c.fail("The function is not allowed here or has wrong operands; function: " + name)
	return operand{}
}

func (c *compiler) path(x language.Expression) path {
	switch x := x.(type) {
	case *language.Identifier:
		return path{c.name(x)}
	case *language.IndexExpression:
		id, ok := x.Index.(*language.Identifier)
		if !ok {
			break
		}
		p := c.path(x.Left)
		if x.Type == language.ObjectTypeMap {
			return append(p, c.name(id))
		}
		// Only a digit string is an index; the lexer calls it an identifier.
		n, err := strconv.Atoi(id.Value)
		if err != nil || n < 0 {
			c.fail("Syntax error; list index must be a whole number: " + id.Value)
		}
		c.identifiers++
		return append(p, step{index: n})
	}
	c.fail("Syntax error; a document path is expected")
	return path{step{}}
}

func (c *compiler) name(id *language.Identifier) step {
	c.identifiers++
	switch {
	case strings.HasPrefix(id.Value, "#"):
		c.names = append(c.names, id.Value)
	case id.Value == "" || id.Value[0] == ':' || id.Token.Type != language.IDENT:
		c.fail("Syntax error; an attribute name is expected: " + id.Value)
	case language.IsReservedWord(strings.ToUpper(id.Value)):
		c.fail("Attribute name is a reserved keyword; reserved keyword: " + id.Value)
	}
	return step{name: id.Value}
}

func (c *compiler) action(x *language.ActionExpression) action {
	a := action{verb: x.Token.Type, path: c.path(x.Left)}
	if a.verb != language.REMOVE {
		a.value = c.operand(x.Right)
	}
	if (a.verb == language.ADD || a.verb == language.DELETE) && a.value.op != opValue {
		c.fail("Syntax error; " + string(a.verb) + " takes an expression attribute value")
	}
	return a
}

// A binding replaces the placeholders of the expressions of one request.
type binding struct {
	names  *node
	values item
}

// bind reads a request's ExpressionAttributeNames and ExpressionAttributeValues and
// checks that what is used is defined and what is defined is used. Nil expressions are
// ignored.
func bind(req *node, used ...*expression) (*binding, error) {
	b := &binding{names: req.get("ExpressionAttributeNames")}
	if v := req.get("ExpressionAttributeValues"); !v.absent() {
		var err error
		if b.values, err = decodeItem(v); err != nil {
			return nil, err
		}
		if len(b.values) == 0 {
			return nil, invalid("ExpressionAttributeValues must not be empty")
		}
	}
	for _, e := range used {
		if e == nil {
			continue
		}
		for _, n := range e.names {
			if b.names.get(n).kind != '"' {
				return nil, invalid("Invalid " + e.label + ": An expression attribute name used in the document path is not defined; attribute name: " + n)
			}
		}
		for _, v := range e.values {
			if _, ok := b.values.find(v); !ok {
				return nil, invalid("Invalid " + e.label + ": An expression attribute value used in expression is not defined; attribute value: " + v)
			}
		}
	}
	uses := func(list func(*expression) []string, name string) bool {
		return slices.ContainsFunc(used, func(e *expression) bool { return e != nil && slices.Contains(list(e), name) })
	}
	for i := range b.names.kids {
		n := b.names.kids[i].name
		if !uses(func(e *expression) []string { return e.names }, n) {
			return nil, invalid("Value provided in ExpressionAttributeNames unused in expressions: keys: {" + n + "}")
		}
	}
	for _, v := range b.values {
		if !uses(func(e *expression) []string { return e.values }, v.name) {
			return nil, invalid("Value provided in ExpressionAttributeValues unused in expressions: keys: {" + v.name + "}")
		}
	}
	return b, nil
}

// name returns the attribute name a step stands for.
func (b *binding) name(s step) string {
	if s.name != "" && s.name[0] == '#' {
		return b.names.get(s.name).text
	}
	return s.name
}

// lookup returns the value at p in it.
func (b *binding) lookup(it item, p path) (value, bool) {
	v, ok := it.get(b.name(p[0]))
	for _, s := range p[1:] {
		switch {
		case !ok:
			return value{}, false
		case s.name == "" && v.kind == kindList && s.index < len(v.list):
			v = v.list[s.index]
		case s.name != "" && v.kind == kindMap:
			v, ok = v.attr.get(b.name(s))
		default:
			return value{}, false
		}
	}
	return v, ok
}

// operand returns an operand's value; ok is false when it refers to nothing.
func (b *binding) operand(it item, o *operand) (v value, ok bool, err error) {
	switch o.op {
	case opValue:
		v, ok = b.values.get(o.value)
	case opPath:
		v, ok = b.lookup(it, o.path)
	case opSize:
		if v, ok = b.lookup(it, o.path); !ok {
			return value{}, false, nil
		}
		n := 0
		switch v.kind {
		case kindString, kindBinary:
			n = len(v.text)
		case kindMap:
			n = len(v.attr)
		case kindList, kindStringSet, kindNumberSet, kindBinarySet:
			n = len(v.list)
		default:
			return value{}, false, nil // a size is not defined: nothing compares with it
		}
		v = value{kind: kindNumber, text: strconv.Itoa(n)}
	default:
		return b.computed(it, o)
	}
	return v, ok, nil
}
