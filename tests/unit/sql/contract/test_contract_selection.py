"""Conditions select the same rows on every database."""

from __future__ import annotations

import pytest
from measurement_factory import make_measurement

from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


@pytest.fixture
def described(store: Store) -> Store:
    store.add(
        [
            make_measurement(position=1, host="node1.example.org", eff_job=0.5, retries=0),
            make_measurement(position=2, host="Node2", eff_job=0.75, retries=3, dirty=True),
            make_measurement(position=3, host="a[1]%_b", failure_class="open"),
            make_measurement("other", position=4, campaign_id="other", host="50% off"),
        ]
    )
    return store


CONDITIONS: list[tuple[list[str], set[int]]] = [
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
]


def test_where_conditions(described: Store) -> None:
    for wheres, positions in CONDITIONS:
        selected = described.measurements(Selection.parse(wheres=wheres), ["position"])
        assert {row["position"] for row in selected} == positions, wheres


def test_campaign_selection(described: Store) -> None:
    for campaigns, count in ((["campaign"], 3), (["other"], 1), (["campaign", "other"], 4)):
        assert len(list(described.measurements(Selection.parse(campaigns)))) == count
