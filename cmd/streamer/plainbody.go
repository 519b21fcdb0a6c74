package main

import (
	"context"
	"io"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// plainBodies hides all of a request's body but Read. The SDK closes a body when an answer's headers
// arrive, which may be before net/http has seen the body's end; its WriteTo then returns io.EOF, which
// net/http takes for a failed write, and closes the connection under the answer: "use of closed
// network connection". To who reads, the same io.EOF is the body's end.
func plainBodies(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("PlainBody", plainBody), middleware.After)
}

func plainBody(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
	if r, ok := in.Request.(*smithyhttp.Request); ok && r.GetStream() != nil {
		plain, err := r.SetStream(struct{ io.Reader }{r.GetStream()})
		if err != nil {
			return middleware.DeserializeOutput{}, middleware.Metadata{}, err
		}
		in.Request = plain
	}
	return next.HandleDeserialize(ctx, in)
}
