"""Permissions of testbed accounts; all others fall back to Rucio's defaults."""

from __future__ import annotations

from typing import Any

from rucio.core import account as accounts
from rucio.core import account_limit, rule

#: Attribute of accounts that may declare replicas bad.
MAY_DECLARE_BAD = "may_declare_bad"


def has_permission(issuer: Any, action: str, kwargs: dict[str, Any], session: Any) -> bool | None:
    """Decide on an account's permission; None delegates the decision to Rucio.

    The owner of a rule may remove and change it, but not transfer it to another account. Files may
    be added to storages on which the account has a quota.
    """
    if issuer.external == "root":
        return None
    if action in ("del_rule", "update_rule"):
        is_owner = rule.get_rule(kwargs["rule_id"], session=session)["account"] == issuer
        return bool(is_owner) and "account" not in kwargs.get("options", {})
    if action == "add_replicas":
        return bool(account_limit.get_local_account_limit(issuer, session, kwargs["rse_id"]))
    if action in ("declare_bad_file_replicas", "add_bad_pfns"):
        return bool(accounts.has_account_attribute(issuer, MAY_DECLARE_BAD, session=session))
    return None
