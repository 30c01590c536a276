"""Users of a node: logins, roles, privileges, certificates, and delays that slow down guessing.

In: decisions about a user. Out: the commands that carry a login (commands).
"""

from penstock.node.auth.listener_access import MECHANISMS, ListenerAccess, decide_access
from penstock.node.auth.login_attempts import LoginAttempts
from penstock.node.auth.roles import (
    ANONYMOUS,
    DOCUMENT_PRIVILEGES,
    Privilege,
    Role,
    RoleName,
    RoleTarget,
    User,
    parse_role,
)
from penstock.node.auth.sasl_exchange import AuthState, Login, LoginStep
from penstock.node.auth.server_tls import ServerTls
from penstock.node.auth.users import Users
from penstock.node.auth.users_file import UsersFile

__all__ = [
    "ANONYMOUS",
    "DOCUMENT_PRIVILEGES",
    "MECHANISMS",
    "AuthState",
    "ListenerAccess",
    "Login",
    "LoginAttempts",
    "LoginStep",
    "Privilege",
    "Role",
    "RoleName",
    "RoleTarget",
    "ServerTls",
    "User",
    "Users",
    "UsersFile",
    "decide_access",
    "parse_role",
]
