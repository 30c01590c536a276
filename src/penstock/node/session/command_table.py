"""The table of a module's commands: the messages of each command, its privileges, and its function.

    COMMANDS = CommandTable()

    @COMMANDS.serve(needs=LOGIN)
    def get_cluster_config(session: Session, request: GetClusterConfig) -> Answer:

The annotation of the request names the messages. The function serves every opcode that has their layout, or the
opcodes in `opcodes`. It receives the decoded message.

A command needs privileges, or a login without any privilege in particular (LOGIN), or nothing (NO_LOGIN). Commands
without a login reply nothing about buckets. LIST_BUCKETS and SELECT_BUCKET need only a login, and use `User.sees`. A
privilege about documents is checked for the collection of the request's key. For a command without a key, such as
DCP_OPEN, the user needs the privilege somewhere in the bucket (`User.has_privilege_within`). The contents of the
request are checked later. A command about the whole bucket checks that (`Session.check_bucket_privilege`).
Source: memcached daemon/mcbp_privileges.cc, with fewer privileges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Flag, auto
from typing import Final, NamedTuple, TypeVar, get_args, get_type_hints

from penstock.node.answers import Answer
from penstock.node.auth import Privilege
from penstock.node.session.session import Handler, Session
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import DIALECT_OF, Code, Layout, Message, find_layout, list_forms
from penstock.wire.codec.opcodes import Magic

Needs = frozenset[Privilege] | None
"""The privileges that a command needs, all of them. None: not even a login."""

NO_LOGIN: Final[Needs] = None
LOGIN: Final = frozenset[Privilege]()
READ: Final = frozenset((Privilege.READ,))
WRITE: Final = frozenset((Privilege.WRITE,))
META_WRITE: Final = frozenset((Privilege.META_WRITE,))
SIMPLE_STATS: Final = frozenset((Privilege.SIMPLE_STATS,))
STREAM: Final = frozenset((Privilege.STREAM,))
REPLICATE: Final = frozenset((Privilege.REPLICATE,))
MANAGE_BUCKETS: Final = frozenset((Privilege.MANAGE_BUCKETS,))
MANAGE_COLLECTIONS: Final = frozenset((Privilege.MANAGE_COLLECTIONS,))
SETTINGS: Final = frozenset((Privilege.SETTINGS,))


class Trait(Flag):
    """Properties of a command that dispatch handles before or after the command's function."""

    NONE = 0
    # Clients send the command with the datatype JSON for every document. Its shape with JSON stands in the table too.
    JSON = auto()
    VIEWED = auto()  # large values arrive as views. They are copied once, into the log.
    DURABLE = auto()  # may have a durability level. Quiet opcodes may not.
    RETRIED_LOCK = auto()  # without XERROR, answers ETMPFAIL to a locked document, not KEY_EEXISTS


F = TypeVar("F", bound=Callable[..., Answer])


class Command(NamedTuple):
    """A command that the node serves.

    Attributes:
        code: its opcode, as a member of the enum of its dialect.
        messages: the classes of its messages.
        needs: the privileges that the user needs.
        traits: properties that dispatch handles.
        function: the function that serves it, as declared in its module.
        handlers: handlers of well-formed frames, by the length of the extras.
        checked_handler: handler of frames of any shape; raises RemoteProtocolError for a malformed frame.
    """

    code: Code
    messages: tuple[type[Message], ...]
    needs: Needs
    traits: Trait
    function: Callable[..., Answer]
    handlers: Mapping[int, Handler]
    checked_handler: Handler


class CommandTable:
    """The commands that a module serves.

    Attributes:
        commands: each command by its code.
    """

    def __init__(self, wrap_handler: Callable[[Handler], Handler] = lambda handler: handler) -> None:
        """Create an empty table.

        Args:
            wrap_handler: wraps each handler of the table. The wrapper runs before the message is decoded.
        """
        self.commands: dict[Code, Command] = {}
        self._wrap_handler = wrap_handler

    def serve(self, *, needs: Needs, traits: Trait = Trait.NONE, opcodes: Iterable[Code] = ()) -> Callable[[F], F]:
        """Return a decorator for a function that serves decoded messages.

        Args:
            needs: the privileges that the user needs.
            traits: properties that dispatch handles.
            opcodes: the opcodes; empty: all opcodes of the function's messages.

        Raises:
            TypeError: an opcode has a layout that the function does not accept, or has a function already.
        """

        def register(function: F) -> F:
            self._register(
                _list_messages(function),
                function,
                lambda layout: _make_decoding_handler(layout, function),
                needs=needs,
                traits=traits,
                opcodes=opcodes,
            )
            return function

        return register

    def serve_frames(
        self, message: type[Message], *, needs: Needs, traits: Trait = Trait.NONE, opcodes: Iterable[Code] = ()
    ) -> Callable[[F], F]:
        """Return a decorator for a function that serves frames. Use it for hot commands, with a benchmark.

        Args:
            message: the message of the frames.
            needs: the privileges that the user needs.
            traits: properties that dispatch handles.
            opcodes: the opcodes; empty: all opcodes of the message.
        """

        def register(function: F) -> F:
            self._register((message,), function, lambda _: function, needs=needs, traits=traits, opcodes=opcodes)
            return function

        return register

    def _register(
        self,
        messages: tuple[type[Message], ...],
        function: Callable[..., Answer],
        make_handler: Callable[[Layout], Handler],
        *,
        needs: Needs,
        traits: Trait,
        opcodes: Iterable[Code],
    ) -> None:
        for code in tuple(opcodes) or dict.fromkeys(code for message in messages for code in message.opcodes):
            forms = list_forms(code, Magic.REQUEST)
            for layout in forms.values():
                if not issubclass(layout.cls, messages):
                    raise TypeError(f"{function.__name__} serves {code.name}, but not its form {layout.cls.__name__}")
            if code in self.commands:
                raise TypeError(f"{code.name} is served by {self.commands[code].function.__name__} already")
            made = {length: make_handler(layout) for length, layout in forms.items()}
            handlers = {length: self._wrap_handler(handler) for length, handler in made.items()}
            self.commands[code] = Command(
                code,
                messages,
                needs,
                traits,
                function,
                handlers,
                self._wrap_handler(_make_checking_handler(code, made)),
            )


def _list_messages(function: Callable[..., Answer]) -> tuple[type[Message], ...]:
    """Return the messages in the annotation of a handler's second parameter."""
    _, request, *_ = get_type_hints(function).values()
    return get_args(request) or (request,)


def _make_decoding_handler(layout: Layout, function: Callable[..., Answer]) -> Handler:
    """Return a handler that decodes frames of one layout for a function."""

    def handle(session: Session, frame: Frame) -> Answer:
        return function(session, layout.make_message(frame))

    return handle


def _make_checking_handler(code: Code, handlers: Mapping[int, Handler]) -> Handler:
    """Return a handler that checks the layout of a frame before it serves the frame."""
    dialect = DIALECT_OF[type(code)]

    def handle(session: Session, frame: Frame) -> Answer:
        find_layout(frame, dialect).check(frame)
        return handlers[len(frame.extras)](session, frame)

    return handle
