"""Rucio's stock daemons of a testbed, each in a thread of one process.

The daemons are unchanged except for shorter sleeps, so that a rule takes seconds instead of the
minutes common in production. Run by the Python that has Rucio::

    python run_daemons.py PREPARED

The daemons start once the file ``PREPARED`` exists.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rucio.daemons.abacus import account as abacus_account
from rucio.daemons.abacus import rse as abacus_rse
from rucio.daemons.badreplicas import necromancer
from rucio.daemons.conveyor import finisher, poller, submitter
from rucio.daemons.judge import cleaner, evaluator, injector, repairer
from rucio.daemons.reaper import reaper
from rucio.daemons.undertaker import undertaker
from rucio.db.sqla import models
from rucio.db.sqla.constants import DatabaseOperationType
from rucio.db.sqla.session import db_session
from sqlalchemy import select

#: Seconds between polls by daemons that process rules, and by all others.
BUSY_DELAY_S, IDLE_DELAY_S = 1, 10


def run_repeatedly(daemon: Callable[..., object], **options: object) -> None:
    """Run a conveyor daemon repeatedly as long as requests exist.

    Its own loop polls a transfer only every ten minutes.
    """
    while True:
        time.sleep(BUSY_DELAY_S)
        try:
            if has_requests():
                daemon(once=True, partition_wait_time=0, **options)
        except Exception:  # as in Rucio's own loop: the next iteration may succeed
            logging.getLogger(daemon.__name__).exception("failed")


def has_requests() -> bool:
    """Check for waiting or running transfers."""
    with db_session(DatabaseOperationType.READ) as session:
        return session.execute(select(models.Request.id).limit(1)).first() is not None


DAEMON_TASKS: dict[str, Callable[[], object]] = {
    "judge-evaluator": lambda: evaluator.re_evaluator(sleep_time=BUSY_DELAY_S),
    "conveyor-submitter": lambda: run_repeatedly(submitter.submitter),
    "conveyor-poller": lambda: run_repeatedly(poller.poller, older_than=0),
    "conveyor-finisher": lambda: run_repeatedly(finisher.finisher),
    "judge-injector": lambda: injector.rule_injector(sleep_time=IDLE_DELAY_S),
    "judge-repairer": lambda: repairer.rule_repairer(sleep_time=IDLE_DELAY_S),
    "judge-cleaner": lambda: cleaner.rule_cleaner(sleep_time=IDLE_DELAY_S),
    "necromancer": lambda: necromancer.necromancer(bulk=100, sleep_time=IDLE_DELAY_S),
    "undertaker": lambda: undertaker.undertaker(sleep_time=IDLE_DELAY_S),
    "reaper": lambda: reaper.reaper([], None, None, sleep_time=IDLE_DELAY_S),
    "abacus-account": lambda: abacus_account.account_update(sleep_time=IDLE_DELAY_S),
    "abacus-rse": lambda: abacus_rse.rse_update(sleep_time=IDLE_DELAY_S),
}


def main() -> None:
    """Run until a signal ends the process at once; interrupted work is repeated or obsolete."""
    form = "%(asctime)s %(name)s %(levelname)s %(message)s"
    # In every loop, the daemons report at the level of information that they did nothing.
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format=form, force=True)
    prepared = Path(sys.argv[1])
    while not prepared.exists():
        time.sleep(0.1)
    for name, run in DAEMON_TASKS.items():
        threading.Thread(target=run, name=name).start()


if __name__ == "__main__":
    main()
