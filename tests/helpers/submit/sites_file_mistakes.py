"""Every kind of mistake in sites.toml: text, and expected line, key and words of the error.

Text added to :data:`SITES_HEADER`, which has four lines, belongs to the table of a site.
"""

from __future__ import annotations

SITES_HEADER = (
    "[pools.p]\n[sites.A]\npool = 'p'\n"
    "doors = [{name = 'root', protocol = 'root', prefix = 'root://h:1//d'}]\n"
)
DOOR_TEXT = "name = 'd'\nprotocol = 'root'\n"

SITES_MISTAKES = [
    # Tables and keys
    (SITES_HEADER + "[sitez.B]\n", 5, "sitez", "did you mean 'sites'?"),
    (SITES_HEADER + "requirement = 'x'\n", 5, "sites.A.requirement", "did you mean 'requirements'?"),
    (SITES_HEADER + "collector = 'x'\n", 5, "sites.A.collector", "it belongs to [pools]"),
    (SITES_HEADER + "ceilings.job = 3\n", 5, "sites.A.ceilings.job", "did you mean 'jobs'?"),
    (SITES_HEADER + "[pools.q]\nscheduler = 'x'\n", 6, "pools.q.scheduler", "did you mean 'schedd'?"),
    ("[sites.A]\n[[sites.A.doors]]\nnam = 'x'\n" + DOOR_TEXT, 3, "sites.A.doors.nam", "'name'"),
    ("sites = 3\n", 1, "sites", "expected a table"),
    ("[sites]\nA = 3\n", 2, "sites.A", "expected a table"),
    ("[sites.A]\ndoors = 3\n", 2, "sites.A.doors", "list in [brackets]"),
    ("[sites.A]\ndoors = [3]\n", 2, "sites.A.doors", "expected a table"),
    ("pools = [1]\n", 1, "pools", "expected a table"),
    # Names
    ("['sites'.'a b']\ndoors = []\n", 1, "sites.a b", "letters, digits"),
    ("[pools.'a@b']\n", 1, "pools.a@b", "letters, digits"),
    (SITES_HEADER.replace("sites.A", "sites.local"), 2, "sites.local", "reserved for this machine"),
    (SITES_HEADER.replace("sites.A", "sites.all"), 2, "sites.all", "reserved for every site"),
    # Pools
    (SITES_HEADER + "[sites.B]\npool = 'q'\ndoors = []\n", 6, "sites.B.pool", "unknown pool 'q' (known: p)"),
    (SITES_HEADER.replace("pool = 'p'", "pool = 'pp'"), 3, "sites.A.pool", "did you mean 'p'?"),
    (SITES_HEADER.replace("pool = 'p'", "pool = ''"), 3, "sites.A.pool", "letters, digits"),
    (SITES_HEADER + "[pools.q]\nconfig = ''\n", 6, "pools.q.config", "expected text"),
    (SITES_HEADER + "[pools.q]\nspool = 'yes'\n", 6, "pools.q.spool", "true or false"),
    (SITES_HEADER + "[pools.q]\ncollector = 9618\n", 6, "pools.q.collector", "expected text in quotes"),
    (
        SITES_HEADER + "[pools.q]\ntoken_dir = 'a'\nscitoken_file = 'b'\n",
        7,
        "pools.q.scitoken_file",
        "cannot be combined with token_dir",
    ),
    (SITES_HEADER + "[pools.q]\nspool = true\nsubmit_dir = 'b'\n", 7, "pools.q.submit_dir", "not spooled"),
    # Sites
    ("[sites.A]\n", 1, "sites.A.doors", "is missing"),
    ("[sites.A]\ndoors = []\n", 2, "sites.A.doors", "has no door"),
    (SITES_HEADER.replace("pool = 'p'", "requirements = 'x'"), 3, "sites.A.requirements", "sites with a pool"),
    (SITES_HEADER.replace("pool = 'p'", "submit = {rank = 1}"), 3, "sites.A.submit", "sites with a pool"),
    (SITES_HEADER + "requirements = 3\n", 5, "sites.A.requirements", "expected text in quotes"),
    (
        SITES_HEADER + 'requirements = """a\n b"""\n',
        5,
        "sites.A.requirements",
        "control characters",
    ),
    (SITES_HEADER + "grid_resource = 'cream x y'\n", 5, "sites.A.grid_resource", "condor, arc, batch"),
    (SITES_HEADER + "grid_resource = 'condor x'\n", 5, "sites.A.grid_resource", "condor SCHEDD COLLECTOR"),
    (SITES_HEADER + "grid_resource = 'arc https://ce.example:443/arex'\n", 5, "sites.A.grid_resource", "/arex/rest/1.0"),
    (SITES_HEADER + "cvmfs = 'cvmfs'\n", 5, "sites.A.cvmfs", "absolute path on the site's nodes"),
    (SITES_HEADER + "python = 'python3'\n", 5, "sites.A.python", "absolute path on the site's nodes"),
    (SITES_HEADER + "labels = 'near'\n", 5, "sites.A.labels", "a list in [brackets]"),
    (SITES_HEADER + "labels = ['a', 'a']\n", 5, "sites.A.labels", "'a' is given twice"),
    (SITES_HEADER + "labels = ['a b']\n", 5, "sites.A.labels", "letters, digits"),
    (SITES_HEADER + "software = 'x'\n", 5, "sites.A.software", "expected a table"),
    (SITES_HEADER + "software = {'*' = 'cvmfs'}\n", 5, "sites.A.software.*", "expected a ROOT release"),
    (SITES_HEADER + "software = {'*' = 'path:/{v}'}\n", 5, "sites.A.software.*", "other than {version}"),
    (SITES_HEADER + "submit = {rank = [1]}\n", 5, "sites.A.submit.rank", "text, a number, true or false"),
    (SITES_HEADER + 'submit = {rank = "a\\nqueue"}\n', 5, "sites.A.submit.rank", "control characters"),
    (SITES_HEADER + "submit = {'+x y' = 1}\n", 5, "sites.A.submit.+x y", "no submit command"),
    (SITES_HEADER + "submit = {rank = ''}\n", 5, "sites.A.submit.rank", "is empty"),
    (
        SITES_HEADER + "submit = {acounting_group = 'x'}\n",
        5,
        "sites.A.submit.acounting_group",
        "Did you mean 'accounting_group'?",
    ),
    (SITES_HEADER + "submit = {universe = 'x'}\n", 5, "sites.A.submit.universe", "'grid_resource'"),
    (
        "[sites.A]\ndoors = [{name = 'd', protocol = 'https', prefix = 'https://h/', token_pools = ['https://p']}]\n",
        2,
        "sites.A.doors.token_pools",
        "HOST or HOST:PORT",
    ),
    (
        "[sites.A]\ndoors = [{name = 'd', protocol = 'http', prefix = 'http://h/', token_pools = ['p']}]\n",
        2,
        "sites.A.doors.token_pools",
        "applies only to https doors",
    ),
    (SITES_HEADER + "submit = {'+Project' = 'atlas'}\n", 5, "sites.A.submit.+Project", "names the attribute atlas"),
    (SITES_HEADER + "submit = {'My.Project' = 'long lunch'}\n", 5, "sites.A.submit.My.Project", "'\"long lunch\"'"),
    (SITES_HEADER + "submit = {rank = 'x \\'}\n", 5, "sites.A.submit.rank", "continues on the next line"),
    (SITES_HEADER + "requirements = 'x \\'\n", 5, "sites.A.requirements", "ends with a backslash"),
    # Ceilings
    (SITES_HEADER + "ceilings = {jobs = -1}\n", 5, "sites.A.ceilings.jobs", "at least 0"),
    (SITES_HEADER + "ceilings = {jobs = 1.5}\n", 5, "sites.A.ceilings.jobs", "a whole number"),
    (SITES_HEADER + "ceilings = {bytes_per_day = '10 XB'}\n", 5, "sites.A.ceilings.bytes_per_day", "10 TB"),
    (SITES_HEADER + "ceilings = {bytes_per_day = -1}\n", 5, "sites.A.ceilings.bytes_per_day", "a number of bytes"),
    (SITES_HEADER + "ceilings = {mb_per_s = inf}\n", 5, "sites.A.ceilings.mb_per_s", "finite"),
    (SITES_HEADER + "ceilings = 3\n", 5, "sites.A.ceilings", "expected a table"),
    # Doors
    ("[sites.A]\n[[sites.A.doors]]\n" + DOOR_TEXT, 2, "sites.A.doors.prefix", "expected prefix or rse"),
    (
        "[sites.A]\n[[sites.A.doors]]\nname = 'd'\nprotocol = 'dav'\nprefix = '/'\n",
        4,
        "sites.A.doors.protocol",
        "'file', 'root', 'https' or 'http'",
    ),
    *(
        (
            f"[sites.A]\n[[sites.A.doors]]\nname = 'd'\nprotocol = '{protocol}'\nprefix = '{prefix}'\n",
            5,
            "sites.A.doors.prefix",
            words,
        )
        for protocol, prefix, words in [
            ("root", "root://h:1094/store", "two slashes after the host: root://h:1094//store"),
            ("root", "https://h//store", "expected root://HOST:PORT/"),
            ("root", "/store", "expected root://HOST:PORT/"),
            ("root", "root://h:port//d", "is not a URL"),
            ("root", "root://u:pw@h//d", "password"),
            ("root", "root://h//d?x=1", "which ROOT interprets as options"),
            ("https", "srm://h/d", "expected https://HOST:PORT/"),
            ("https", "https://h/a b", "expected %20"),
            ("http", "https://h/d", "expected http://HOST:PORT/"),
            ("file", "file:///d", "is a URL (expected a path)"),
            ("file", "/d#1", "which ROOT interprets as options"),
            ("file", "", "expected text"),
        ]
    ),
    (
        SITES_HEADER + "[[sites.B.doors]]\nprefix = '/'\nprotocol = 'file'\nname = 'x y'\n",
        8,
        "sites.B.doors.name",
        "letters, digits",
    ),
    (
        "[sites.A]\n" + 2 * ("[[sites.A.doors]]\nprefix = '/'\nprotocol = 'file'\nname = 'x'\n"),
        9,
        "sites.A.doors.name",
        "'x' is given twice",
    ),
]  # fmt: skip

#: Invalid TOML, and the expected line of the error.
BROKEN_SITES = [("[sites.A\n", 1), ("[sites.A]\n[sites.A]\n", 2), ("[sites.A]\npool =\n", 2)]
