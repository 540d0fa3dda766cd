"""Published sites: pages with relative links, hidden names, selections, feed, badges and check."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
import sqlalchemy as sa
from hostile_database import fill_hostile_database
from measurement_factory import build_pair, build_verdict, make_campaign_row, make_measurement
from page_database import fill_store
from repository_code import call_command, invoke_command

from treehammer.analysis.comparison.conclusion import describe_headline
from treehammer.config import Settings, load_settings
from treehammer.errors import ConfigError, ExitCode, NothingToDoError, StoreError
from treehammer.publish import site_writer
from treehammer.publish.pages.verdicts_page import choose_bases, lay_out_trend
from treehammer.publish.public_names import PublicNames
from treehammer.publish.publication import Publication, PublicationRequest, publish_site
from treehammer.publish.site_check import PublishedSite
from treehammer.publish.site_update import update_site
from treehammer.publish.site_writer import describe_verdicts, draw_badge, name_file
from treehammer.publish.static_html import MAX_PAGE_BYTES, StaticPage
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.schema import metadata
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress

HOST, PERSON = "wn017.cluster.example.org", "jane.doe"
OF_OTHERS = "private"


def find_settings(folder: Path) -> Settings:
    return load_settings({"data_dir": folder}, environ={}, folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database: two campaigns, a comparison of each, a host and a person."""
    folder = tmp_path_factory.mktemp("published")
    with Store.open(find_settings(folder).database) as store:
        fill_store(store)
        for name in ("open", OF_OTHERS):
            plan = CampaignPlan(submitter=PERSON)
            campaign = make_campaign_row(
                name, name=name, plan=plan, test_path=f"/home/{PERSON}/test"
            )
            store.add_campaign(campaign, [])
            store.add(
                [make_measurement(f"m-{name}", campaign_id=name, host=HOST, site=f"AT_{name}")]
            )
            evidence = VerdictEvidence(
                campaigns=(name,), shared_hosts={HOST: ("A", "B")}, sites=("A", "B"), delta=0.02
            )
            changes = {"label": "branches=2%", "effect": 0.05, "low": 0.04, "high": 0.06}
            rows = [
                build_verdict(name, verdict="slower", evidence=evidence, **changes),
                build_verdict(
                    name, verdict="slower", scope="site", site="A", evidence=evidence, **changes
                ),
            ]
            pair = replace(build_pair(name, 0.05), campaign_id=name, host=HOST)
            store.replace_comparison(name, [pair], rows)
    return folder


def publish(folder: Path, target: Path, **options: object) -> Publication:
    request = PublicationRequest(target, **options)  # type: ignore[arg-type]
    return publish_site(find_settings(folder), request, no_progress)


def read_all(site: PublishedSite) -> str:
    return "\n".join(site.read_text(file) for file in site.files if "static/" not in file)


@pytest.fixture(scope="module")
def site(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PublishedSite:
    target = tmp_path_factory.mktemp("site") / "site"
    publication = publish(folder, target, address="https://example.org/root")
    assert not publication.problems
    return publication.site


def test_site_holds_the_service_pages_with_data_feed_and_badges(site: PublishedSite) -> None:
    kinds = {row["kind"]: row["pages"] for row in site.measure_pages()}
    assert kinds["verdicts"] == kinds["compare"] == 1
    assert kinds["comparison"] == 3
    for page in site.folder.glob("compare/*.html"):
        document = json.loads(page.with_suffix(".json").read_text())
        text = page.read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert document["about"]["conclusion"] in text or "<script>" in text
        if page.stem != "comparison":
            assert document["files"]["pairs"] == f"{page.stem}-pairs.csv.xz"
            assert "log_ratio" in site.read_text(f"compare/{page.stem}-pairs.csv.xz")
            assert f'href="{page.stem}-pairs.csv.xz">All 1 pairs (CSV)</a>' in page.read_text()
        badge = ElementTree.fromstring(page.with_suffix(".svg").read_text())
        assert badge.get("aria-label", "").endswith(": 1 slower")
    index = (site.folder / "index.html").read_text()
    assert 'href="compare/open.html"' in index
    assert 'href="../index.html"' in (site.folder / "compare/open.html").read_text()
    feed = ElementTree.fromstring((site.folder / "feed.atom").read_bytes())
    links = {link.get("href") for link in feed.iter("{http://www.w3.org/2005/Atom}link")}
    assert "https://example.org/root/compare/open.html" in links
    assert site.manifest["has_hosts"] is False
    for page in site.folder.rglob("*.html"):
        assert page.stat().st_size <= MAX_PAGE_BYTES
        assert "<form" not in page.read_text()
        assert "hx-" not in page.read_text()


def test_charts_are_drawn_and_can_be_zoomed(site: PublishedSite) -> None:
    text = (site.folder / "index.html").read_text()
    assert re.search(r'<div class="canvas"[^>]* data-library="static/vendor/vega[^>]*><svg', text)
    assert json.loads(re.findall(r'<script type="application/json">(.*?)</script>', text)[0])


def test_hosts_and_people_are_left_out_unless_asked_for(
    folder: Path, site: PublishedSite, tmp_path: Path
) -> None:
    assert HOST not in (text := read_all(site))
    assert "node-" in text
    assert PERSON not in text
    options = {"campaigns": ("open",), "hosts": True, "people": True}
    assert HOST in read_all(publish(folder, tmp_path / "site", **options).site)


def test_nothing_is_published_if_a_name_would_be(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PublicNames, "_replace", lambda _, text, **__: text)
    with pytest.raises(StoreError, match=f"nothing was published.*{HOST}"):
        publish(folder, tmp_path / "site", campaigns=("open",))
    assert not (tmp_path / "site").exists()


def test_selection_publishes_comparisons_of_its_campaigns_alone(
    folder: Path, tmp_path: Path
) -> None:
    publication = publish(folder, tmp_path / "site", campaigns=("open",))
    text = read_all(publication.site)
    assert publication.campaigns == 1
    assert "compare/open" in text
    assert OF_OTHERS not in text
    with pytest.raises((ConfigError, NothingToDoError)):
        publish(folder, tmp_path / "other", campaigns=("nothing of that name",))


def test_copy_lacks_keys_and_the_audit_trail(folder: Path, tmp_path: Path) -> None:
    from treehammer.publish.publication import copy_public

    source = find_settings(folder).database
    copy = copy_public(source, tmp_path / "copy.db", [], with_hosts=False, with_people=False)
    engine = sa.create_engine(copy.url)
    with engine.connect() as connection:
        for name in ("access_key", "campaign_owner", "receipt", "audit_entry", "attempt"):
            assert not connection.execute(sa.select(metadata.tables[name])).all()
        plans = connection.execute(sa.text("SELECT plan, submitter, test_path FROM campaign")).all()
    engine.dispose()
    assert PERSON not in str(plans)


def test_next_site_replaces_the_files_of_the_earlier_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "site"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="other files"):
        publish(folder, target)
    (target / "notes.txt").unlink()
    summary = update_site(find_settings(folder), target, "")  # as the patrol does
    assert re.fullmatch(rf"\d+ pages in {target}", summary)
    (target / "CNAME").write_text("example.org")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            publish(folder, target, campaigns=("open",))
    publish(folder, target, campaigns=("open",))
    assert not (target / "compare" / f"{OF_OTHERS}.html").exists()
    assert (target / "CNAME").exists()
    assert not PublishedSite(target).find_problems()


def test_check_finds_sizes_links_references_and_names(site: PublishedSite, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"></p><a href="b.html">b</a><a href="#there">there</a><a href="#here">here</a>'
        '<img src="https://example.org/x.png">' + HOST + " jane@example.org"
    )
    (tmp_path / "large.html").write_text("x" * (MAX_PAGE_BYTES + 1))
    files = ["a.html", "large.html", "lost.json"]
    (tmp_path / "site.json").write_text(json.dumps({"files": files, "pages": []}))
    problems = PublishedSite(tmp_path).find_problems([HOST], [PERSON])
    assert sorted(f"{problem.file} {problem.problem}" for problem in problems) == [
        "a.html contains an address of electronic mail: jane@example.org",
        f"a.html contains the name of a host: {HOST}",
        "a.html links #there, which does not exist",
        "a.html links b.html, which does not exist",
        "a.html refers to https://example.org/x.png",
        "large.html has 100 kB, more than 100 kB",
        "lost.json is missing",
    ]


def test_command_publishes_and_checks(folder: Path, tmp_path: Path) -> None:
    result = invoke_command("publish", folder, str(tmp_path / "site"))
    assert result.exit_code == ExitCode.DONE, result.output
    assert "hosts and people left out" in result.output
    assert invoke_command("publish", folder, str(tmp_path / "site"), "--check").exit_code == 0
    (tmp_path / "site" / "feed.atom").write_text(PERSON)
    checked = call_command("publish", folder, str(tmp_path / "site"), "--check")
    assert checked.return_value == ExitCode.REGRESSION
    with pytest.raises(ConfigError, match="no published site"):
        call_command("publish", folder, str(tmp_path), "--check")


def test_names_of_hosts_are_replaced_where_they_are_no_words() -> None:
    replace_names = PublicNames(["wn1.example.org", "runner"]).replace
    assert replace_names("wn1.example.org", hides_people=False) == "node-1"
    assert replace_names("root://wn1.example.org:1094/f, wn1.", hides_people=False) == (
        "root://node-1:1094/f, node-1."
    )
    assert replace_names("wn10 runner", hides_people=False) == "wn10 runner"
    assert replace_names('{"runner":["wn1"]}', hides_people=False) == '{"node-2":["node-1"]}'
    assert replace_names("/home/jane/x", hides_people=True) == "/home/someone/x"
    failure = "cannot install ROOT 6.40.00 in /data/cache/software/root-6.40.00: disk full"
    assert "ROOT 6.40.00 in software/root-6.40.00: " in replace_names(failure, hides_people=False)


PAGE = """<!DOCTYPE html><html><head></head><body><main>
<p>Kept <a href="/known">a</a> and <a href="/lost">b</a> (<a href="/lost">evidence</a>).
<a href="/lost">x</a> · <a href="/known#part">y</a></p>
<nav><ul><li><a href="/lost">gone</a></li></ul></nav>
<details><summary>Other</summary><form><input></form></details>
<div><div class="wide"><table><caption>t</caption><tbody>{rows}</tbody></table></div>
<p class="quiet">First 200 of 1,450 rows; CSV and JSON hold all.</p></div>
</main><footer><p>v · <a href="/api">API</a></p></footer></body></html>"""


def test_links_without_a_page_and_forms_are_removed() -> None:
    rows = f"<tr><td>{'x' * 3000}</td></tr>" * 200
    pages = {"/known": "known.html", "/known#part": "known.html#part"}
    text = StaticPage(PAGE.format(rows=rows), lambda link: pages.get(link, ""), "d.json").render()
    body = re.sub(r"\s+", " ", text)
    assert (
        'Kept <a href="known.html">a</a> and <span>b</span>. <a href="known.html#part">y</a>'
        in body
    )
    assert "<nav" not in body
    assert "<details" not in body
    assert body.count("<tr>") == 16
    assert '1,435 more in the <a href="#data-files">data</a>' in body
    assert "First 200" not in body
    assert "API" not in body


def test_badge_names_the_verdicts_over_the_widest_scope_with_an_answer() -> None:
    verdicts = {"cpu_per_event_s": {"host": {"slower": 1}, "sites": {"not enough data": 1}}}
    assert describe_verdicts(verdicts)[0] == "1 slower"
    counts = {"file_size_bytes": {"host": {"same": 9}, "sites": {"same": 20, "slower": 4}}}
    assert describe_verdicts(counts)[0] == "4 worse of 24"
    assert describe_headline(counts).endswith("20 same, 4 worse over sites")
    message, color = describe_verdicts({"": {"site": {"only in A": 9, "same": 2, "failed": 1}}})
    assert message == "2 same of 3"
    assert describe_verdicts({})[0] == "not enough data"
    assert "&lt;b&gt;" in draw_badge("<b>", message, color)


def test_files_have_the_names_of_addresses() -> None:
    assert name_file("/verdicts") == "index.html"
    assert name_file("/compare?page=2") == "compare-2.html"
    assert name_file("/releases/6.40.00") == "releases/6.40.00.html"
    assert name_file("/changes/a%2F..%2Fb") == "changes/a_2f.._2fb.html"
    assert site_writer._normalize("/compare?#top") == "/compare"


def test_trend_begins_at_the_base_and_draws_the_largest_changes() -> None:
    def build(b: str, label: str, effect: float) -> object:
        return build_verdict("c", a="6.36.00", b=b, label=label, effect=effect, low=None, high=None)

    rows = [build(b, f"v{n}", 0.01 * n) for b in ("6.40.00", "6.38.00") for n in range(10)]
    layout = lay_out_trend(rows, "6.36.00")  # type: ignore[arg-type]
    assert layout is not None
    assert layout.places == ("6.36.00", "6.38.00", "6.40.00")
    assert [series.name for series in layout.series] == [f"v{n}" for n in range(9, 1, -1)]
    assert [mark.y for mark in layout.marks if mark.place == 0] == [0.0] * 8
    assert lay_out_trend([], "6.36.00") is None
    unjudged = [Mock(test="t", a="6.40.00", effects=[Mock(verdict="too little read")])] * 2
    judged = Mock(test="t", a="6.38.00", comparison_id="c", effects=[Mock(verdict="same")])
    assert [*choose_bases([*unjudged, judged])] == [("t", "6.38.00", ["c"])]


def test_large_matrix_loses_rows_before_the_page_exceeds_its_limit() -> None:
    cells = "<td title='long'><a href='/lost'>+5<span class='unseen'> words</span></a></td>" * 300
    rows = f"<tr><th><a href='/lost'>v</a></th>{cells}</tr>" * 40
    page = PAGE.replace("<table>", '<table class="matrix">').format(rows=rows)
    text = StaticPage(page, lambda _: "", "d.json").render()
    assert len(text) <= MAX_PAGE_BYTES
    assert "<td>+5</td>" in text
    assert text.count("<th>") == 20


def test_counts_are_published_exactly_and_other_numbers_rounded() -> None:
    (row,) = site_writer.select_fitting_rows(
        [{"a_value": 1234567.0, "effect": 0.123456789, "low": None}]
    )
    assert row == {"a_value": 1234567.0, "effect": 0.123457}


class _TagList(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_hostile_texts_in_all_columns_stay_texts(tmp_path: Path) -> None:
    """Addresses of pages are quoted, and rows that refer to missing ones are left out."""
    fill_hostile_database(find_settings(tmp_path).database)
    publication = publish(tmp_path, tmp_path / "site")
    assert not publication.problems
    for page in (tmp_path / "site").rglob("*.html"):
        tags = _TagList()
        tags.feed(page.read_text())
        for tag, attributes in tags.tags:
            assert tag not in ("form", "img", "iframe", "base")
            assert not [name for name in attributes if name.startswith("on")]
            is_own = "static/" in (attributes.get("src") or "")
            assert tag != "script" or is_own or attributes["type"] == "application/json"
