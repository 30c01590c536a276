"""Users of a node: logins, roles, privileges, certificates, and how guessing is slowed down.

In: decisions about a user. Out: the commands that carry a login (commands).
"""

from penstock.node.auth.listener_access import MECHANISMS, Access, decide_access
from penstock.node.auth.login_attempts import Attempts
from penstock.node.auth.roles import ANONYMOUS, OF_DOCUMENTS, Privilege, Role, RoleName, RoleTarget, User, parse_role
from penstock.node.auth.sasl_exchange import AuthState, Login, Step
from penstock.node.auth.server_tls import ServerTls
from penstock.node.auth.users import Users
from penstock.node.auth.users_file import UsersFile

__all__ = [
    "ANONYMOUS",
    "MECHANISMS",
    "OF_DOCUMENTS",
    "Access",
    "Attempts",
    "AuthState",
    "Login",
    "Privilege",
    "Role",
    "RoleName",
    "RoleTarget",
    "ServerTls",
    "Step",
    "User",
    "Users",
    "UsersFile",
    "decide_access",
    "parse_role",
]
