"""Logging in to a node: users and what they may do, SASL, TLS, and how guessing is slowed down.

Nothing in here does I/O, but for the file of users and those of TLS.
"""

from penstock.node.login.access import MECHANISMS, Access, decide_access
from penstock.node.login.attempts import Attempts
from penstock.node.login.privileges import BEFORE_LOGIN, needed, needed_to_open
from penstock.node.login.roles import ANONYMOUS, OF_DOCUMENTS, Privilege, Role, RoleName, Target, User, parse_role
from penstock.node.login.sasl import AuthState, Login, Step
from penstock.node.login.tls import ServerTls
from penstock.node.login.users import Users
from penstock.node.login.users_file import UsersFile

__all__ = [
    "ANONYMOUS",
    "BEFORE_LOGIN",
    "MECHANISMS",
    "OF_DOCUMENTS",
    "Access",
    "Attempts",
    "AuthState",
    "Login",
    "Privilege",
    "Role",
    "RoleName",
    "ServerTls",
    "Step",
    "Target",
    "User",
    "Users",
    "UsersFile",
    "decide_access",
    "needed",
    "needed_to_open",
    "parse_role",
]
