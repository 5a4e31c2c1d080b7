from .assertion import (
    asserted as asserted,
    for_operation as for_operation,
    may_act_on as may_act_on,
    require_assertion as require_assertion,
)
from .paging import (
    PageQuery as PageQuery,
    Position as Position,
    cursor_at as cursor_at,
    paginate as paginate,
    position_of as position_of,
)
from .problems import (
    CONTENT_TYPE as CONTENT_TYPE,
    EVERYWHERE as EVERYWHERE,
    TYPE_PREFIX as TYPE_PREFIX,
    ArtifactRefused as ArtifactRefused,
    BadRequest as BadRequest,
    NotYours as NotYours,
    Problem as Problem,
    TooManyStreams as TooManyStreams,
    problem_of as problem_of,
    status_of as status_of,
)
from .route import (
    BINARY as BINARY,
    EVENT_STREAM as EVENT_STREAM,
    FORM as FORM,
    JSON as JSON,
    PLAIN_TEXT as PLAIN_TEXT,
    Annotation as Annotation,
    Call as Call,
    Form as Form,
    NoQuery as NoQuery,
    Nothing as Nothing,
    Query as Query,
    Reply as Reply,
    Route as Route,
)
from .streams import EventStream as EventStream, Streams as Streams
