"""Sign-offs on page Review: the log, the form, and the files for a pull request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from profiling import review_report as report
from profiling import reviews
from profiling.case import InputError
from profiling.pages import signin, widgets
from profiling.review_table import Standing, standings

URL_VARIABLE = "FLASHSCOPE_REVIEWS"
SEEN = "review_seen"  # the fingerprint that was on the screen when the form was sent
SIGNED = "review_signed"  # how many times this session has signed: each form has keys of its own


class Exports(NamedTuple):
    """The place of the export buttons: above the signatures, which they hold as well."""

    place: DeltaGenerator

    def fill(self, review: report.Review, run: str) -> None:
        """Draw the buttons."""
        with self.place:
            st.header("For a pull request")
            st.text(f"Evidence fingerprint {review.fingerprint}")
            with st.container(horizontal=True):
                for label, text, ending, mime in (
                    ("Markdown", report.to_markdown, "md", "text/markdown"),
                    ("HTML", report.to_html, "html", "text/html"),
                    ("CSV", report.to_csv, "csv", "text/csv"),
                ):
                    st.download_button(
                        label,
                        data=text(review),
                        file_name=f"{run}-review.{ending}",
                        mime=mime,
                        on_click="ignore",
                        key=f"review-{ending}",
                    )
                with st.popover("Copy Markdown"):
                    st.code(report.to_markdown(review), language="markdown")


def draw(now: reviews.SignOff, data: Path) -> tuple[reviews.SignOff, ...]:
    """Draw the log and the form; returns the signatures of this question, the newest first.

    Args:
        now: the evidence on the screen, without a name and a decision.
        data: the data folder, where the log is if no database is named.
    """
    st.header("Sign-offs")
    try:
        log = reviews.Reviews(os.environ.get(URL_VARIABLE) or reviews.default_url(data))
        place = st.container()
        _form(log, now)
        found, count = log.of(now.question_digest), log.count()
    except InputError as error:
        st.error(widgets.plain(error))
        st.text("The table above stands; nobody can sign before the database is back.")
        return ()
    with place:
        if not found:
            st.text("Nobody has signed for these models and ranges yet.")
        for each in standings(found, now.fingerprint, now.evidence):
            _entry(each)
        others = count - len(found)
        if others:
            st.caption(f"{others} more in the log, for other models or ranges.")
    return found


def _entry(each: Standing) -> None:
    """One signature; a stale one is struck through, with what changed."""
    signed = each.sign_off
    said = widgets.plain(f"{signed.name}: {signed.decision}")
    comment = f" – {widgets.plain(signed.comment)}" if signed.comment else ""
    line = f"{said}{comment}"
    badge = ":gray-badge[stale]" if each.stale else ":green-badge[valid]"
    st.markdown(f"{badge} {f'~~{line}~~' if each.stale else f'**{line}**'}")
    more = [f"signed {signed.signed_at}", f"run {signed.run_id}", f"evidence {signed.fingerprint}"]
    st.text(" · ".join([*more, *([each.text] if each.stale else [])]))


def _form(log: reviews.Reviews, now: reviews.SignOff) -> None:
    """Name, decision, comment. What was typed stays when it is refused; a user's name is not typed."""
    who = signin.admit("sign")
    if not who.admitted:
        return
    turn = st.session_state.get(SIGNED, 0)
    if turn:
        st.success("Signed.")
    seen = st.session_state.get(SEEN)
    st.session_state[SEEN] = now.fingerprint
    with st.form(f"sign-{turn}", border=True):
        name = who.name
        if not who.needed:
            name = st.text_input("Name", key=f"sign-name-{turn}", max_chars=reviews.LONGEST_NAME)
        decision = st.radio(
            "Decision", list(reviews.DECISIONS), index=None, key=f"sign-decision-{turn}", horizontal=True
        )
        comment = st.text_area(
            "Comment",
            key=f"sign-comment-{turn}",
            max_chars=reviews.LONGEST_COMMENT,
            help="Needed with a rejection or conditions",
        )
        sent = st.form_submit_button("Sign")
    if not sent:
        return
    if seen != now.fingerprint:
        st.warning("The evidence changed while you were reading: look at the table again, then sign.")
        return
    if decision is None:
        st.error("Choose a decision: approved, approved with conditions, or rejected.")
        return
    try:
        log.add(now._replace(name=name, decision=decision, comment=comment))
    except InputError as error:
        st.error(widgets.plain(error))
        return
    st.session_state[SIGNED] = turn + 1
    st.rerun()
