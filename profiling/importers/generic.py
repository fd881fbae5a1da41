"""Any wide or long table, as `--map`, `--set` and `--name` say it is."""

from __future__ import annotations

from profiling.importers.roles import Plan, Settings
from profiling.importers.tables import Table

NAME = "generic"
HELP = "any table; --map says what each column is"


def recognises(table: Table) -> bool:
    """Never by itself: what a column holds has to be said."""
    return False


def plan(table: Table, settings: Settings) -> Plan:
    """A plan without roles; `roles.completed` adds those that were said."""
    return Plan(columns={})
