"""Files written whole or not at all."""

import os
import secrets
from pathlib import Path


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes UTF-8 text whole or not at all."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
