"""Own distributions against SciPy's, which a light installation lacks."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special

from treehammer.analysis.statistics.distributions import (
    chi_squared_quantile,
    f_tail,
    shifted_student_tail,
    student_quantile,
    student_tail,
)

DEGREES = st.floats(1, 1e5)


@given(DEGREES, st.floats(-5, 40))
@example(7111, 1e-5)
def test_tail_of_t_is_that_of_scipy(df: float, t: float) -> None:
    assert student_tail(df, t) == pytest.approx(float(special.stdtr(df, -t)), rel=1e-8, abs=1e-18)


@given(DEGREES, st.floats(1e-9, 0.45))
def test_quantile_of_t_is_that_of_scipy(df: float, p: float) -> None:
    assert student_quantile(df, p) == pytest.approx(-float(special.stdtrit(df, p)), rel=1e-8)


@given(st.integers(1, 500), st.integers(8, 500), st.floats(0.01, 50))
def test_tail_of_f_is_that_of_scipy(df1: int, df2: int, ratio: float) -> None:
    reference = float(special.fdtrc(df1, df2, ratio))
    assert f_tail(df1, df2, ratio) == pytest.approx(reference, rel=1e-9, abs=1e-15)


@given(st.floats(1, 1e4), st.floats(0.05, 0.95))
@settings(deadline=None)
def test_quantile_of_chi_squared_is_that_of_scipy(df: float, p: float) -> None:
    assert chi_squared_quantile(df, p) == pytest.approx(float(special.chdtri(df, p)), rel=2e-5)


@pytest.mark.parametrize("level", [0.05, 0.025, 1e-4])
@pytest.mark.parametrize("df", [1, 2, 5, 30, 999, 9999])
def test_power_is_that_of_scipy(df: int, level: float) -> None:
    limit = student_quantile(df, level)
    for shift in (0.1, 2.0, 4.0, 8.0, 20.0):
        reference = 1 - float(special.nctdtr(df, shift, limit))
        assert shifted_student_tail(df, limit, shift) == pytest.approx(reference, abs=1e-6)
