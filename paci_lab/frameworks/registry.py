"""Which frameworks there are and whether they are here; importing this imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from paci_lab.errors import InputError

__all__ = ["FRAMEWORKS", "Framework", "installed_version", "require"]


@dataclass(frozen=True)
class Framework:
    """`package` is what pip calls it, `module` the file here that trains with it, on so many `ranks`."""

    name: str
    title: str
    package: str
    module: str
    ranks: int = 1


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework("hand", "hand-written loop", "torch", "hand"),
        Framework("trainer", "Hugging Face Trainer", "transformers", "hf_trainer"),
        Framework("accelerate", "Accelerate", "accelerate", "hf_accelerate"),
        Framework("lightning", "PyTorch Lightning", "lightning", "pl_lightning"),
        Framework("fsdp2", "FSDP2, two ranks", "torch", "fsdp2", ranks=2),
        Framework("deepspeed", "DeepSpeed", "deepspeed", "ds_engine"),
    )
}


def installed_version(name: str) -> str | None:
    """The version of a framework's package, None when it is not installed; InputError for an unknown name."""
    if name not in FRAMEWORKS:
        raise InputError("framework", name, ", ".join(FRAMEWORKS), "choose one of them")
    needed = [FRAMEWORKS[name].package] + (["accelerate"] if name == "trainer" else [])
    try:
        return [version(package) for package in needed][0]
    except PackageNotFoundError:
        return None


def require(name: str) -> str:
    """The version; raises InputError with the extra to install when the framework is not here."""
    found = installed_version(name)
    if found is None:
        here = ", ".join(other for other in FRAMEWORKS if installed_version(other))
        raise InputError(
            "framework",
            f"{name} (not installed)",
            here,
            "install the extra: make setup EXTRAS=test,frameworks, or "
            'python -m pip install -c constraints.txt -e ".[frameworks]"',
        )
    return found
