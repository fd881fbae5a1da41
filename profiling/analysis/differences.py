"""What else differs between the two sides of a comparison: GPU, software, commit, kernels."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

_ORIGINS: dict[str, str] = {
    "device": "device_name",
    "device UUID": "device_uuid",
    "driver": "driver_version",
    "torch": "torch_version",
    "triton": "triton_version",
    "git commit": "git_commit",
}


class Difference(NamedTuple):
    """`what` is not one and the same in A and B. The values of each side, in order; empty means unknown."""

    what: str
    a: tuple[str, ...]
    b: tuple[str, ...]


def differences(a: pd.DataFrame, b: pd.DataFrame) -> tuple[Difference, ...]:
    """Where the rows of two comparison tables come from different places.

    A side that mixes several values differs, too, even if the other mixes the same ones. The sources of a
    backend's kernel are told by their hash, for backends that both sides have; a row that failed has none.
    """
    found = [Difference(what, _values(a[name]), _values(b[name])) for what, name in _ORIGINS.items()]
    backends = [name for name in a["backend"].unique() if name in set(b["backend"])]
    for backend in backends:
        hashes = [table.loc[table["backend"] == backend, "kernel_hash"] for table in (a, b)]
        known = [_values(each[each != ""]) or ("",) for each in hashes]
        found.append(Difference(f"kernel sources of {backend}", *known))
    return tuple(each for each in found if len({*each.a, *each.b}) > 1)


def _values(column: pd.Series) -> tuple[str, ...]:
    return tuple(sorted(str(value) for value in column.fillna("").unique()))
