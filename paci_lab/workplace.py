"""Where a learner's copies of the lessons live, with all that their cells write: in a folder that is theirs alone."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["HOME_FOLDER", "VARIABLE", "workplace"]

VARIABLE = "PACI_LAB_HOME"
"""Environment variable that names the folder; `~` in it is the learner's home, so that a hub can set it for all."""

HOME_FOLDER = "~/paci-lab"
"""The folder where a checkout cannot be written, or is somebody else's."""


def workplace(folder: Path, *, shared: bool = False) -> Path:
    """The folder for copies of the lessons in `folder`: what PACI_LAB_HOME says, else `folder`/work.

    A class may share one checkout. Where it cannot be written, or another user's copies are in it already, or `shared`
    says that others use it, the place is `~/paci-lab`: two learners never write into the same folder.
    """
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser().absolute()
    work = folder / "work"
    if shared or not _ours(work if work.exists() else folder, made=work.exists()):
        return Path(HOME_FOLDER).expanduser()
    return work


def _ours(path: Path, *, made: bool) -> bool:
    """True when this user may write to `path` and, where it was made for copies, made it."""
    return os.access(path, os.W_OK | os.X_OK) and (not made or path.stat().st_uid == os.getuid())
