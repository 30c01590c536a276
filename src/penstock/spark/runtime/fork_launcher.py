"""Asks the fork server to run one of Spark's Python processes, and ends when that process ends.

A program of its own that imports nothing of Penstock: `fork_launcher.py SOCKET ARGUMENTS`. It runs with `python -I -S`,
which starts within a few milliseconds. Without the server it runs the process itself.
"""

import os
import socket
import sys

STATUS_BYTES = 1


def pack_request(arguments: list[str]) -> bytes:
    """Return the working directory, the arguments and the environment as one message, after its length."""
    environment = [name + b"=" + value for name, value in os.environb.items()]
    parts = [os.getcwdb(), b"%d" % len(arguments), *map(os.fsencode, arguments), *environment]
    message = b"\0".join(parts)
    return len(message).to_bytes(4, "big") + message


def main() -> None:
    """Run the process that the arguments describe."""
    place, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(place)
            message = pack_request(arguments)
            sent = socket.send_fds(connection, [message], [0, 1, 2])
            connection.sendall(message[sent:])
        except OSError:
            os.execv(os.environ["PENSTOCK_PYTHON"], [os.environ["PENSTOCK_PYTHON"], *arguments])
        status = connection.recv(STATUS_BYTES)
        while connection.recv(STATUS_BYTES):
            pass  # the process ends after it has sent its status
    sys.exit(status[0] if status else 1)


if __name__ == "__main__":
    main()
