"""The commands of lavinmqctl about users and their permissions."""

from __future__ import annotations

from lavinmq.cli.ctl.errors import ApiError, CtlError
from lavinmq.cli.ctl.session import Session

NOT_FOUND = 404
PERMISSIONS = ("configure", "write", "read")
TOPICS = ("exchange", "write", "read")


def add_user(session: Session) -> None:
    """Add a user; one that is there gets the password."""
    name = session.arguments[0]
    session.api.put("users", name, body={"password": session.password(1)})


def delete_user(session: Session) -> None:
    """Delete a user."""
    session.api.delete("users", session.arguments[0])


def change_password(session: Session) -> None:
    """Give a user who is there another password."""
    name = session.arguments[0]
    password = session.password(1)
    _must_exist(session, name)
    session.api.put("users", name, body={"password": password})


def list_users(session: Session) -> None:
    """List all users."""
    rows = session.api.rows("users", columns="name,tags")
    session.output.table("users", ("name", "tags"), rows)


def set_user_tags(session: Session) -> None:
    """Give a user exactly these tags."""
    from lavinmq.auth.users import TAGS

    name, *tags = session.arguments
    if unknown := [tag for tag in ",".join(tags).split(",") if tag and tag.lower() not in TAGS]:
        raise CtlError(f"Unknown tag {unknown[0]!r}, one of {', '.join(TAGS)}")
    _must_exist(session, name)
    session.api.put("users", name, body={"tags": ",".join(tags)})


def hash_password(session: Session) -> None:
    """Print a hash; no broker is needed."""
    from lavinmq.auth import passwords

    print(passwords.hash_password(session.password(0).encode()))


def set_permissions(session: Session) -> None:
    """Set the permissions of a user in a virtual host."""
    name, *patterns = session.arguments
    body = dict(zip(PERMISSIONS, patterns, strict=True))
    session.api.put("permissions", session.vhost, name, body=body)


def clear_permissions(session: Session) -> None:
    """Take all permissions in a virtual host from a user."""
    session.api.delete("permissions", session.vhost, session.arguments[0])


def list_permissions(session: Session) -> None:
    """List the permissions of all users in a virtual host."""
    rows = session.api.rows("vhosts", session.vhost, "permissions")
    session.output.table(
        f"permissions in vhost {session.vhost}", ("user", *PERMISSIONS), rows
    )  # fmt: skip


def list_user_permissions(session: Session) -> None:
    """List the permissions of a user in all virtual hosts."""
    name = session.arguments[0]
    rows = session.api.rows("users", name, "permissions")
    session.output.table(f"permissions of user {name}", ("vhost", *PERMISSIONS), rows)


def set_topic_permissions(session: Session) -> None:
    """Set what a user may do with the routing keys of an exchange."""
    name, *values = session.arguments
    body = dict(zip(TOPICS, values, strict=True))
    session.api.put("topic-permissions", session.vhost, name, body=body)


def clear_topic_permissions(session: Session) -> None:
    """Allow a user all routing keys again, of one exchange or of all."""
    name, *exchange = session.arguments
    session.api.delete("topic-permissions", session.vhost, name, *exchange)


def list_topic_permissions(session: Session) -> None:
    """List what users may do with routing keys in a virtual host."""
    rows = session.api.rows("vhosts", session.vhost, "topic-permissions")
    title = f"topic permissions in vhost {session.vhost}"
    session.output.table(title, ("user", *TOPICS), rows)


def list_user_topic_permissions(session: Session) -> None:
    """List what a user may do with routing keys in all virtual hosts."""
    name = session.arguments[0]
    rows = session.api.rows("users", name, "topic-permissions")
    session.output.table(f"topic permissions of user {name}", ("vhost", *TOPICS), rows)


def _must_exist(session: Session, name: str) -> None:
    """A change must not create a user by a slip of the pen. Raises: CtlError."""
    try:
        session.api.get("users", name)
    except ApiError as error:
        if error.code == NOT_FOUND:
            raise CtlError(f"There is no user {name!r}") from None
        raise
