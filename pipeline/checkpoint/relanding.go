package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"telemetrylake/pipeline"
)

// ErrLandedElsewhere means that a window is not as it was seen: another process has landed it, or
// sealed it.
var ErrLandedElsewhere = errors.New("the window was landed or sealed just now")

// ServerNow is the time of the service that keeps the table, at most a second and an answer's way
// behind; this machine's before the first answer.
func (s *Store) ServerNow() time.Time { return s.serverNow() }

// BeginLanding takes the turn to land a committed window once more, as it was seen: of several
// processes that would, one does. It counts the landing, and gives up nothing of the window for
// GiveUpAfter from now. It returns what is stored now, for EndLanding; it fails with
// ErrLandedElsewhere for everybody else.
func (s *Store) BeginLanding(ctx context.Context, seen WindowStatus) (WindowStatus, error) {
	if seen.LandedAt.IsZero() { // by a binary that did not write it down
		err := s.markLanded(ctx, seen.ID, false)
		if refused := (*types.ConditionalCheckFailedException)(nil); err == nil || errors.As(err, &refused) {
			err = ErrLandedElsewhere // the next look sees when
		}
		return seen, fmt.Errorf("begin landing of window %s: %w", seen.ID, err)
	}
	begun := seen
	begun.Landings++
	begun.LandedAt = unstamp(stamp(s.serverNow()))
	in := s.landing(seen)
	in.UpdateExpression = aws.String("SET landed_at = :now, landings = :after")
	in.ExpressionAttributeValues[":now"] = str(stamp(begun.LandedAt))
	in.ExpressionAttributeValues[":after"] = num(begun.Landings)
	if _, err := s.client.UpdateItem(ctx, in); err != nil {
		if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
			err = ErrLandedElsewhere
		}
		return seen, fmt.Errorf("begin landing of window %s: %w", seen.ID, err)
	}
	return begun, nil
}

// EndLanding notes how the landing ended that BeginLanding returned: what is landed may be on its way
// from now on, and what failed does not count as one. A window that was sealed meanwhile stays as it is.
func (s *Store) EndLanding(ctx context.Context, begun WindowStatus, landed bool) error {
	in := s.landing(begun)
	in.UpdateExpression = aws.String("SET landed_at = :now")
	in.ExpressionAttributeValues[":now"] = str(stamp(s.serverNow()))
	if !landed {
		in.UpdateExpression = aws.String("SET landed_at = :now, landings = :before")
		in.ExpressionAttributeValues[":before"] = num(begun.Landings - 1)
	}
	_, err := s.client.UpdateItem(ctx, in)
	if refused := (*types.ConditionalCheckFailedException)(nil); err != nil && !errors.As(err, &refused) {
		return fmt.Errorf("note the landing of window %s: %w", begun.ID, err)
	}
	return nil
}

// landing is an update of a committed window that was landed as w says.
func (s *Store) landing(w WindowStatus) *dynamodb.UpdateItemInput {
	in := &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: windowKey(w.ID).av(),
		ConditionExpression:      aws.String("#s = :committed AND landed_at = :landed AND landings = :landings"),
		ExpressionAttributeNames: map[string]string{"#s": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":committed": str(string(pipeline.WindowCommitted)), ":landed": str(stamp(w.LandedAt)), ":landings": num(w.Landings),
		},
	}
	if w.Landings == 0 {
		in.ConditionExpression = aws.String("#s = :committed AND landed_at = :landed AND (attribute_not_exists(landings) OR landings = :landings)")
	}
	return in
}
