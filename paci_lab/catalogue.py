"""The sentences of the code, collected for translators: `python -m paci_lab.catalogue` after a sentence has changed.

It writes `locale/paci_lab.pot` and brings every translation up to date: new sentences are added with no translation,
changed ones keep the old one marked as fuzzy, which is not used. `python -m paci_lab.catalogue de` begins
`locale/de.po`. A translation needs nothing else: no compiler, no registration.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from babel import Locale, UnknownLocaleError
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

from paci_lab.errors import InputError
from paci_lab.language import FOLDER
from paci_lab.schedules import schedule_classes

__all__ = ["TEMPLATE", "collect", "main", "written"]

ROOT = Path(__file__).parents[1]
TEMPLATE = FOLDER / "paci_lab.pot"
_PACKAGES = ("paci_lab", "tuning")
_KEYWORDS = {"_": None, "ngettext": (1, 2), "Reason": None}
_HEADER = "# Sentences of PACI Lab, collected by python -m paci_lab.catalogue."
_LEFT_OUT = (
    "Date: ",
    '"Generated-By: ',
    "EMAIL@ADDRESS",
    "Language-Team: ",
)  # of a header: what changes or says nothing


def collect() -> Catalog:
    """Every message of the code, and what schedules say of themselves, for their room knows no languages."""
    catalogue = Catalog(project="paci-lab", version="1", header_comment=_HEADER, fuzzy=False)
    for package in _PACKAGES:
        found = extract_from_dir(ROOT / package, method_map=[("**.py", "python")], keywords=_KEYWORDS)
        for name, _line, message, _comments, context in sorted(found, key=lambda one: one[:2]):
            catalogue.add(message, locations=[(f"{package}/{name}", 0)], context=context)
    for schedule in schedule_classes().values():
        catalogue.add(schedule.summary, locations=[("paci_lab/schedules", 0)])
    return catalogue


def written(catalogue: Catalog) -> str:
    """A catalogue as text, without line numbers, dates and versions: it changes only when a sentence does."""
    file = io.BytesIO()
    write_po(file, catalogue, width=120, sort_output=True, include_lineno=False)
    lines = file.getvalue().decode("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not any(words in line for words in _LEFT_OUT))


def main(languages: list[str]) -> None:
    """Write the template, and every translation there is or is asked for."""
    FOLDER.mkdir(exist_ok=True)
    catalogue = collect()
    TEMPLATE.write_text(written(catalogue), encoding="utf-8")
    print(f"{TEMPLATE.relative_to(ROOT)}: {len(catalogue)} messages")
    for path in sorted({*FOLDER.glob("*.po"), *(FOLDER / f"{language}.po" for language in languages)}):
        try:
            locale = Locale.parse(path.stem)
        except (UnknownLocaleError, ValueError):
            raise InputError("language", path.stem, "a code such as de or pt_BR", "name another") from None
        translation = Catalog(locale=locale, project="paci-lab", version="1", header_comment=_HEADER, fuzzy=False)
        if path.exists():
            with open(path, "rb") as file:
                translation = read_po(file, locale=locale, abort_invalid=True)
        translation.update(catalogue)
        path.write_text(written(translation), encoding="utf-8")
        done = sum(bool(message.id and any(message.string) and not message.fuzzy) for message in translation)
        print(f"{path.relative_to(ROOT)}: {done} of {len(catalogue)} messages translated")


if __name__ == "__main__":
    main(sys.argv[1:])
