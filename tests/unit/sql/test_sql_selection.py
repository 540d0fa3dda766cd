"""Conditions select what they say, and wrong ones say what is wrong."""

from __future__ import annotations

import pytest
from sql_makers import make_measurement

from treehammer.errors import ConfigError
from treehammer.sql.selection import Selection, Where
from treehammer.sql.store import Store


@pytest.fixture
def filled(store: Store) -> Store:
    store.add(
        [
            make_measurement(position=1, host="node1.example.org", eff_job=0.5, retries=0),
            make_measurement(position=2, host="Node2", eff_job=0.75, retries=3, dirty=True),
            make_measurement(position=3, host="a[1]%_b", failure_class="open"),
            make_measurement(position=4, campaign_id="other", host="50% off"),
        ]
    )
    return store


@pytest.mark.parametrize(
    ("wheres", "positions"),
    [
        ([], {1, 2, 3, 4}),
        (["host=Node2"], {2}),
        ([" host = Node2 "], {2}),
        (["host=node2"], set()),
        (["host!=Node2"], {1, 3, 4}),
        (["failure_class="], {1, 2, 4}),
        (["failure_class!="], {3}),
        (["failure_class!=read"], {1, 2, 3, 4}),
        (["host~node*"], {1}),
        (["host~?ode*"], {1, 2}),
        (["host~*[1]*"], {3}),
        (["host~*%*"], {3, 4}),
        (["host~a*_b"], {3}),
        (["eff_job>0.5"], {2}),
        (["eff_job>=0.5"], {1, 2}),
        (["eff_job<7.5e-1"], {1}),
        (["eff_job<=0.75", "retries=3"], {2}),
        (["retries!=3"], {1, 3, 4}),
        (["dirty=true"], {2}),
        (["dirty=No"], {1, 3, 4}),
        (["host=a=b"], set()),
        (["host='; DROP TABLE measurement; --"], set()),
    ],
)
def test_conditions(filled: Store, wheres: list[str], positions: set[int]) -> None:
    selected = filled.measurements(Selection.of(wheres=wheres), ["position"])
    assert {row["position"] for row in selected} == positions


def test_campaigns(filled: Store) -> None:
    for campaigns, count in ((["campaign"], 3), (["other"], 1), (["campaign", "other"], 4)):
        assert len(list(filled.measurements(Selection.of(campaigns)))) == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no condition"),
        ("host", "no condition"),
        ("=x", "no condition"),
        ("hots=x", "Did you mean host"),
        ("retries=many", "a whole number"),
        ("retries=1.5", "a whole number"),
        ("retries=9223372036854775808", "a whole number"),
        ("eff_job=nan", "a number"),
        ("eff_job>", "missing"),
        ("dirty=perhaps", "true or false"),
        ("dirty>0", "no number"),
        ("axis_root>6.38", "compares numbers"),
        ("eff_job~0.*", "compares text"),
        ("read_latency_hist=1", "list"),
        ("measurement.host=x", "no condition"),
    ],
)
def test_wrong_conditions(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Where.parse(text)


def test_a_selection_reads_as_what_it_means() -> None:
    assert str(Selection()) == "all measurements"
    selection = Selection.of(["a", "b"], ["eff_job>0.5", "failure_class="])
    assert str(selection) == "campaign_id=a or b and eff_job>0.5 and failure_class="
