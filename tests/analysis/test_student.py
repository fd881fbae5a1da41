"""Student's t against the table of any textbook, and against scipy's own distribution."""

import pytest
from scipy import stats

from profiling.analysis.student import student_t


@pytest.mark.parametrize(("degrees", "known"), [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042)])
def test_the_quantile_is_the_tables(degrees, known):
    """Two-sided, 95 %."""
    assert student_t(degrees) == pytest.approx(known, abs=5e-4)
    assert student_t(degrees) == pytest.approx(stats.t.ppf(0.975, degrees))
