"""The table of a module's commands: of each its messages, what it needs, and the function that serves it.

    COMMANDS = CommandTable()

    @COMMANDS.serve(needs=LOGIN)
    def get_cluster_config(session: Session, request: GetClusterConfig) -> Answer:

The annotation of the request names the messages. The function serves every opcode that has their layout, or those in
`opcodes`. It receives the decoded message.

A command needs privileges, a login without any privilege in particular, or nothing: NO_LOGIN. Commands that need no
login reply nothing about buckets. LIST_BUCKETS and SELECT_BUCKET need a login alone, and go by `User.sees`. A privilege
about documents is checked with the collection of the request's key. For a command without a key, such as DCP_OPEN, it
is enough to have the privilege somewhere in the bucket (`User.may_somewhere`); what is in the request is checked later.
Source: memcached daemon/mcbp_privileges.cc, with fewer privileges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar, get_args, get_type_hints

from penstock.node.answers import Answer
from penstock.node.auth import Privilege
from penstock.node.session.session import Handler, Session
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import DIALECT_OF, Code, Layout, Message, layout_of, layouts_of
from penstock.wire.codec.opcodes import Magic

__all__ = [
    "LOGIN",
    "MANAGE_BUCKETS",
    "MANAGE_COLLECTIONS",
    "META_READ",
    "META_WRITE",
    "NO_LOGIN",
    "READ",
    "REPLICATE",
    "SETTINGS",
    "SIMPLE_STATS",
    "STREAM",
    "WRITE",
    "Command",
    "CommandTable",
    "Needs",
]

Needs = frozenset[Privilege] | None
"""The privileges that a command needs, all of them; None: not even a login."""

NO_LOGIN: Final[Needs] = None
LOGIN: Final = frozenset[Privilege]()
READ: Final = frozenset((Privilege.READ,))
WRITE: Final = frozenset((Privilege.WRITE,))
META_READ: Final = frozenset((Privilege.META_READ,))
META_WRITE: Final = frozenset((Privilege.META_WRITE,))
SIMPLE_STATS: Final = frozenset((Privilege.SIMPLE_STATS,))
STREAM: Final = frozenset((Privilege.STREAM,))
REPLICATE: Final = frozenset((Privilege.REPLICATE,))
MANAGE_BUCKETS: Final = frozenset((Privilege.MANAGE_BUCKETS,))
MANAGE_COLLECTIONS: Final = frozenset((Privilege.MANAGE_COLLECTIONS,))
SETTINGS: Final = frozenset((Privilege.SETTINGS,))

F = TypeVar("F", bound=Callable[..., Answer])


class Command(NamedTuple):
    """A command that the node serves.

    Attributes:
        code: its opcode, as a member of the enum of its dialect.
        messages: the classes of its messages.
        needs: what the user needs for it.
        function: the function that serves it, as its module has it.
        handlers: handlers of frames whose shape is well formed, by the length of the extras.
        checked: handler of frames of any shape; raises RemoteProtocolError for one that is not well formed.
    """

    code: Code
    messages: tuple[type[Message], ...]
    needs: Needs
    function: Callable[..., Answer]
    handlers: Mapping[int, Handler]
    checked: Handler


class CommandTable:
    """The commands that a module serves.

    Attributes:
        commands: each command by its code.
    """

    def __init__(self, around: Callable[[Handler], Handler] = lambda handler: handler) -> None:
        """around: makes each handler of the table; what it adds runs before the message is decoded."""
        self.commands: dict[Code, Command] = {}
        self._around = around

    def serve(self, *, needs: Needs, opcodes: Iterable[Code] = ()) -> Callable[[F], F]:
        """Return a decorator of a function that serves decoded messages.

        Raises TypeError if one of the opcodes has a layout that the function does not accept.
        """

        def enter(function: F) -> F:
            self._enter(_messages_of(function), needs, opcodes, function, lambda layout: _decoding(layout, function))
            return function

        return enter

    def serve_frames(self, message: type[Message], *, needs: Needs, opcodes: Iterable[Code] = ()) -> Callable[[F], F]:
        """Return a decorator of a function that serves frames of a message: for hot commands, with a benchmark."""

        def enter(function: F) -> F:
            self._enter((message,), needs, opcodes, function, lambda _: function)
            return function

        return enter

    def _enter(
        self,
        messages: tuple[type[Message], ...],
        needs: Needs,
        opcodes: Iterable[Code],
        function: Callable[..., Answer],
        make_handler: Callable[[Layout], Handler],
    ) -> None:
        for code in tuple(opcodes) or dict.fromkeys(code for message in messages for code in message.opcodes):
            forms = layouts_of(code, Magic.REQUEST)
            for layout in forms.values():
                if not issubclass(layout.cls, messages):
                    raise TypeError(f"{function.__name__} serves {code.name}, but not its form {layout.cls.__name__}")
            if code in self.commands:
                raise TypeError(f"{code.name} is served by {self.commands[code].function.__name__} already")
            made = {length: make_handler(layout) for length, layout in forms.items()}
            handlers = {length: self._around(handler) for length, handler in made.items()}
            self.commands[code] = Command(
                code, messages, needs, function, handlers, self._around(_checking(code, made))
            )


def _messages_of(function: Callable[..., Answer]) -> tuple[type[Message], ...]:
    """Return the messages that the annotation of a handler's request names."""
    _, request, *_ = get_type_hints(function).values()
    return get_args(request) or (request,)


def _decoding(layout: Layout, function: Callable[..., Answer]) -> Handler:
    decode = layout.message_of

    def handle(session: Session, frame: Frame) -> Answer:
        return function(session, decode(frame))

    return handle


def _checking(code: Code, handlers: Mapping[int, Handler]) -> Handler:
    dialect = DIALECT_OF[type(code)]

    def handle(session: Session, frame: Frame) -> Answer:
        layout_of(frame, dialect).check(frame)
        return handlers[len(frame.extras)](session, frame)

    return handle
