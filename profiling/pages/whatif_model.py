"""A prediction as the page What-if shows it: lines, sentences, costs and the table. No Streamlit widget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from profiling import units
from profiling.analysis.cost import Prices, costs
from profiling.analysis.whatif import Prediction, WhatIf
from profiling.case import Case
from profiling.devices import Device
from profiling.figures.series import Point, Series
from profiling.model.hopper import as_run
from profiling.model.memory import input_bytes, largest_seq_len, peak_bytes
from profiling.pages import widgets

MODEL = "not modelled"
CONFIDENCE = {
    "A": "from the vendor's table, or several sources agree",
    "B": "from one secondary source, or worked out",
    "C": "unsure",
}


class Fit(NamedTuple):
    """How far one backend fits the other GPU's memory, by its law.

    `largest` is the longest N whose inputs and peak fit; None where there is no law or the memory is unknown.
    `beyond` are the lengths of the run that do not.
    """

    backend: str
    largest: int | None
    beyond: tuple[int, ...]


def fits(one: Prediction, device: Device) -> tuple[Fit, Fit]:
    """Baseline and candidate: how far each fits the device's memory."""
    lengths = list(one.est_latency_ms)
    out = []
    for name in (one.baseline, one.candidate):
        largest = None
        if device.memory_bytes is not None:
            longest = as_run(one.slice.case(name, lengths[-1]), device)
            largest = largest_seq_len(longest, device.memory_bytes)
        beyond = tuple(n for n in lengths if largest is not None and n > largest)
        out.append(Fit(name, largest, beyond))
    return out[0], out[1]


def latency_series(one: Prediction, device: Device) -> tuple[Series, ...]:
    """The predicted latency of both, dashed, as far as each fits the device's memory."""
    out = []
    for place, fit in enumerate(fits(one, device)):
        points = tuple(Point(n, pair[place]) for n, pair in one.est_latency_ms.items() if n not in fit.beyond)
        out.append(Series(fit.backend, points, label=f"{fit.backend} on {device.name}", modelled=True))
    return tuple(out)


def ratio_series(one: Prediction, device: Device) -> Series:
    """Predicted baseline / candidate, dashed, where both fit."""
    beyond = {n for fit in fits(one, device) for n in fit.beyond}
    points = tuple(Point(n, ratio) for n, ratio in one.ratio.items() if n not in beyond)
    return Series(one.candidate, points, label=f"on {device.name}", modelled=True)


def memory_series(one: Prediction, device: Device) -> tuple[Series, ...]:
    """The law of the peak of both on a device, dashed: it differs where `flash` has kernels of its own."""
    out = []
    for name in (one.baseline, one.candidate):
        held = {n: peak_bytes(as_run(one.slice.case(name, n), device)) for n in one.est_latency_ms}
        points = tuple(Point(n, float(nbytes)) for n, nbytes in held.items() if nbytes)
        if points:
            out.append(Series(name, points, label=f"{name}, law", modelled=True))
    return tuple(out)


def crossover_text(one: Prediction, seq_len: int | None) -> str:
    """N* of a model in words: a length, `always` or `never` within the lengths of the run."""
    if seq_len is None:
        return "never"
    return "always" if seq_len <= min(one.est_latency_ms) else units.count_text(seq_len)


def sentence(one: Prediction, found: WhatIf) -> str:
    """What the model says of the other GPU (Markdown, escaped)."""
    there, here = widgets.plain(found.device.name), widgets.plain(found.here.name)
    candidate, baseline = widgets.plain(one.candidate), widgets.plain(one.baseline)
    n = one.crossover_seq_len
    first, last = min(one.est_latency_ms), max(one.est_latency_ms)
    span = f"N = {units.count_text(first)} to {units.count_text(last)}"
    if n is None:
        told = f"**{candidate}** is not expected to get ahead of {baseline} for good within {span}"
    elif n <= first:
        told = f"**{candidate}** is expected ahead of {baseline} at every N from {span}"
    else:
        told = f"**{candidate}** is expected ahead of {baseline} from N\\* = {units.count_text(n)} on"
        if all(ratio > 1 for length, ratio in one.ratio.items() if length < n):
            told += (
                " (at the shorter lengths drawn it is ahead too, but not between them: a call pays for whole "
                "tiles, so the model goes up and down with N)"
            )
    return (
        f"On {there} {told}. This is a prediction, not a measurement: a model of bytes, FLOPs and launches "
        f"was fitted to the run on {here}, and its rates scaled by what the catalogue knows of both GPUs."
    )


def error_text(one: Prediction, found: WhatIf) -> str:
    """How far off the model is, and from where on the lead is larger than that (Markdown, escaped)."""
    here, there = widgets.plain(found.here.name), widgets.plain(found.device.name)
    text = f"**How sure is that?** On {here} "
    if found.unseen_error != found.unseen_error:  # NaN: too few cases to leave some out
        return text + (
            "there are too few cases to test the model on what it has not seen, so nobody knows how far "
            f"it is off; nor is that known on {there}."
        )
    text += (
        f"the model is off by {units.percent_text(found.unseen_error)} (median) on head dims and batch sizes "
        f"that it was not shown. How far it is off on {there} is not known: nobody has measured there. An "
        f"interval of N\\* is {MODEL} for the same reason."
    )
    text += f" {widgets.plain(found.kernels_text)}" if found.kernels else ""
    sure = sure_from(one, found.unseen_error)
    if sure is None:
        return f"{text} At no length of the run is the lead larger than twice that error."
    return f"{text} From N = {units.count_text(sure)} on the lead is larger than that error on both sides."


def sure_from(one: Prediction, error: float) -> int | None:
    """The first N of the run from which on the candidate leads even if both are off by `error` against it."""
    bound = (1 + error) / (1 - error) if error < 1 else float("inf")
    sure = None
    for n, ratio in sorted(one.ratio.items(), reverse=True):
        if ratio <= bound:
            break
        sure = n
    return sure


def memory_text(one: Prediction, device: Device) -> list[str]:
    """What does not fit, a line a backend, for those who meet this for the first time (Markdown, escaped)."""
    name = widgets.plain(device.name)
    if device.memory_bytes is None:
        return [f"How much memory {name} has is not in the catalogue."]
    lines = []
    for fit in fits(one, device):
        backend = widgets.plain(fit.backend)
        if fit.largest is None:
            lines.append(f"**{backend}**: {MODEL}, it has no memory law.")
            continue
        case = as_run(one.slice.case(fit.backend, fit.largest), device)
        peak, inputs = peak_bytes(case) or 0, input_bytes(case)
        text = (
            f"**{backend}** fits up to N = {units.count_text(fit.largest)}: there the call holds "
            f"{units.bytes_text(peak)} above its inputs of {units.bytes_text(inputs)}."
        )
        if fit.beyond:
            lengths = ", ".join(units.count_text(n) for n in fit.beyond)
            text += f" **Of the lengths of this run N = {lengths} does not fit**, and is not drawn."
        else:
            text += " Every length of this run fits."
        lines.append(text)
    lines.append(
        f"Counted is one call on an otherwise empty {name} of {units.bytes_text(device.memory_bytes)}. "
        "A model's weights, its other layers and PyTorch itself take their share first."
    )
    return lines


def cost_of(case: Case, ms: float, per_hour: float) -> float:
    """Thousandths of the currency per million query tokens, at a price per hour of the device."""
    row = pd.DataFrame(
        {
            "batch": [case.batch],
            "seq_len_q": [case.seq_len_q],
            "layout": [case.layout],
            "latency_p50_ms": [ms],
        }
    )
    return float(costs(row, Prices(per_hour))[0])


def cost_text(
    one: Prediction, found: WhatIf, per_hour: float, here_ms: Mapping[int, float], here_price: float | None
) -> str:
    """What a million tokens cost at the longest N that fits there, and here if that price is known."""
    candidate = fits(one, found.device)[1]
    lengths = [n for n in one.est_latency_ms if n not in candidate.beyond]
    if not lengths:
        return ""
    n = max(lengths)
    case = one.slice.case(one.candidate, n)
    there = cost_of(case, one.est_latency_ms[n][1], per_hour)
    name = widgets.plain(one.candidate)
    text = (
        f"At N = {units.count_text(n)} a million query tokens of {name} in one such layer cost "
        f"{units.number_text(there)} thousandths of the currency on "
        f"{widgets.plain(found.device.name)} (modelled)"
    )
    if here_price and n in here_ms:
        here = cost_of(case, here_ms[n], here_price)
        text += (
            f", {units.number_text(here)} on {widgets.plain(found.here.name)} (measured): "
            f"{units.ratio_text(there / here)} as much"
        )
    return f"{text}."


def table(
    one: Prediction, found: WhatIf, measured: Mapping[str, Mapping[int, float]], per_hour: float | None
) -> pd.DataFrame:
    """By N and backend: measured here, predicted there, whether it fits, and the cost; every digit kept."""
    rows = []
    for place, fit in enumerate(fits(one, found.device)):
        for n, pair in one.est_latency_ms.items():
            case = as_run(one.slice.case(fit.backend, n), found.device)
            line = {
                "backend": fit.backend,
                "seq_len": n,
                "here": found.here.name,
                "latency_p50_ms": measured.get(fit.backend, {}).get(n),
                "ratio": _over(measured.get(one.baseline, {}).get(n), measured.get(one.candidate, {}).get(n)),
                "there": found.device.name,
                "est_latency_ms": pair[place],
                "est_ratio": one.ratio[n],
                "est_peak_mem_bytes": peak_bytes(case),
                "fits": MODEL if fit.largest is None else "no" if n in fit.beyond else "yes",
            }
            if per_hour:
                line["est_cost_per_million_tokens_thousandths"] = cost_of(case, pair[place], per_hour)
            rows.append(line)
    return pd.DataFrame(rows).astype(
        {"latency_p50_ms": "float64", "ratio": "float64", "est_peak_mem_bytes": "Int64"}
    )


def _over(first: float | None, second: float | None) -> float | None:
    return first / second if first is not None and second else None


def source_text(device: Device) -> str:
    """What the catalogue has of the device, and how sure it is (Markdown, escaped)."""
    parts = [
        f"{units.count_text(device.sm_count)} SMs" if device.sm_count else "",
        f"{units.bandwidth_text(device.dram_bandwidth_gbs)}" if device.dram_bandwidth_gbs else "",
        f"{units.tflops_text(device.bf16_tflops or device.fp16_tflops)} in 16 bits"
        if device.bf16_tflops or device.fp16_tflops
        else "",
        units.bytes_text(device.memory_bytes) if device.memory_bytes else "",
    ]
    text = f"{device.name}: {', '.join(filter(None, parts))}; {CONFIDENCE.get(device.confidence, '')}"
    text += f" ({device.source})" if device.source else ""
    return widgets.plain(f"{text}. {device.note}." if device.note else f"{text}.")
