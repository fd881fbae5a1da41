"""Other people's files, and our own, as runs: one module a family, `generic` for everything else.

The way of a foreign table: `tables` (text to cells), a family's plan or the command line's (`roles`),
`points` (cells to readings), `assembly` (readings to runs, and what was set aside).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from profiling.case import InputError
from profiling.export import guard
from profiling.importers import (
    attention_gym,
    comparison,
    flash_log,
    generic,
    liger,
    perf_report,
    runfile,
    sdpa_script,
    tile_log,
    tritonbench,
)
from profiling.importers.assembly import Imported, assemble
from profiling.importers.points import understand
from profiling.importers.roles import Settings, completed
from profiling.importers.tables import DELIMITERS, Table, read_bytes, read_table, shown, text_of
from profiling.records import COLUMNS, Run

__all__ = ["FAMILIES", "Imported", "Settings", "aside_csv", "import_file", "import_runs", "import_tables"]

_OURS = "comparison"
_MODULES: tuple[ModuleType, ...] = (
    *(liger, attention_gym, perf_report, tritonbench, sdpa_script, flash_log, tile_log, generic),
)
FAMILIES: dict[str, str] = {  # the words of `--as`, with what they are
    _OURS: "FlashScope's own CSV or run file",
    **{module.NAME: module.HELP for module in _MODULES},
}
_OUR_OWN = {"backend", "run_id", "latency_p50_ms"}  # columns by which a table is ours, if with a fault


def import_runs(path: Path, name: str | None = None) -> list[Run]:
    """All runs in a file whose family is plain to see; `import_tables` takes more.

    Args:
        path: the file.
        name: what to call it, where that is not its own name.

    Raises:
        InputError: the file cannot be read or belongs to no known family.
    """
    return list(import_tables([path], names=None if name is None else [name]).runs)


def import_file(path: Path) -> Run:
    """The run in a file.

    Raises:
        InputError: as `import_runs`, or the file holds several runs.
    """
    return comparison.only(import_runs(path), str(path))


def import_tables(
    paths: Sequence[Path],
    family: str | None = None,
    settings: Settings | None = None,
    names: Sequence[str] | None = None,
) -> Imported:
    """What is in a file, with what was set aside.

    Args:
        paths: the file; several are taken for one run, which says that they were measured on the same
            machine with the same software.
        family: one of `FAMILIES`; None: by the file's header, or `generic` where columns are mapped.
        settings: what the command line says of the columns.
        names: what to call the files.

    Raises:
        InputError: a file cannot be read, or cannot be understood; the message says where and what was
            expected.
    """
    settings = settings or Settings()
    if family is not None and family not in FAMILIES:
        raise InputError(f"--as {family}: must be one of {', '.join(FAMILIES)}")
    if settings.decimal not in (None, ".", ","):
        raise InputError(f"--decimal {settings.decimal}: must be . or ,")
    if settings.delimiter is not None and settings.delimiter not in DELIMITERS:
        raise InputError(f"--delimiter {settings.delimiter}: must be one of , ; tab |")
    called = list(names or [path.name for path in paths])
    contents = [read_bytes(path) for path in paths]
    if family in (None, _OURS):
        for path, content, name in zip(paths, contents, called, strict=True):
            found = _ours(path, content, name, sure=family == _OURS)
            if found is not None and len(paths) == 1 and settings == Settings():
                return found
            if found is not None:
                raise InputError(f"{name}: is FlashScope's own: it is taken alone, and without options")
    parts = []
    for content, name in zip(contents, called, strict=True):
        table, module = _family(content, name, family, settings)
        if module is generic and not settings.maps:
            raise InputError(_unknown(table))
        plan = completed(module.plan(table, settings), table, settings)
        parts.append((table, plan, understand(table, plan, settings.decimal)))
    return assemble(parts, settings, b"".join(contents))


def aside_csv(imported: Imported) -> str:
    """The rows set aside as CSV: file, line and reason before the row's own cells."""
    width = max((len(each.cells) for each in imported.aside), default=0)
    header = [*imported.header, *(f"column {k + 1}" for k in range(len(imported.header), width))]
    out = io.StringIO(newline="")
    # all quoted: before Python 3.13 a carriage return is not, and a reader would split the row there
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow([guard(text) for text in ("file", "line", "reason", *header)])
    for each in imported.aside:
        why = each.why + (f", got {each.got}" if each.got else "")
        padded = (*each.cells, *[""] * (len(header) - len(each.cells)))
        writer.writerow([guard(text) for text in (each.file, str(each.line), why, *padded)])
    return out.getvalue()


def _ours(path: Path, content: bytes, name: str, *, sure: bool) -> Imported | None:
    """A run file or a comparison CSV; None where it is neither."""
    if runfile.recognises(content):
        return runfile.import_counted(path, content, name)
    text = text_of(content, name)
    if not sure and not _looks_ours(text):
        return None
    return comparison.import_counted(text, name)


def _looks_ours(text: str) -> bool:
    """Whether the header is ours, if with a fault: then the fault is told, and no other family looked for."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    header = {cell.strip().strip('"') for cell in re.split(f"[{''.join(DELIMITERS)}]", line)}
    return header >= _OUR_OWN or len(header.intersection(COLUMNS)) > len(COLUMNS) // 2


def _family(content: bytes, name: str, family: str | None, settings: Settings) -> tuple[Table, ModuleType]:
    """The table and the module that understands it."""
    text = text_of(content, name)
    if family == flash_log.NAME or (family is None and flash_log.recognises_text(text)):
        return flash_log.table_of(text, name), flash_log
    table = read_table(text, name, settings.delimiter)
    if family is not None:
        (module,) = (module for module in _MODULES if family == module.NAME)
        if module is not generic and not module.recognises(table) and module is not perf_report:
            raise InputError(f"{name}: its columns are not those of {family}: {', '.join(table.header)}")
        return table, module
    found = [module for module in _MODULES if module.recognises(table)]
    if len(found) > 1:
        words = " or ".join(f"--as {module.NAME}" for module in found)
        raise InputError(f"{name}: may be of several families: say {words}")
    return table, found[0] if found else generic


def _unknown(table: Table) -> str:
    """What to do with a table that nobody recognises."""
    families = ", ".join(module.NAME for module in _MODULES)
    return (
        f"{table.name}: is not a comparison CSV, and its columns show no family "
        f"({', '.join(map(shown, table.header[:12]))}{', ...' if len(table.header) > 12 else ''}): say which "
        f"with --as {families}, or what each column holds with --map COLUMN=ROLE"
    )
