"""SHA-256 of the published wheels of ROOT.

As on PyPI, for Linux on x86_64 (``manylinux_2_28``): release -> tag of the Python version -> hash.
PyPI never replaces a published file, so these never change.  For an interpreter that is not listed,
only the hash stated by the index is checked.
"""

from __future__ import annotations

import platform
import sys
from typing import Dict

WHEEL_SHA256: Dict[str, Dict[str, str]] = {
    "6.37.01": {
        "cp39": "77d1ce628643cd3cfef2b562116d5a4a5ed127aa8fa3274ed1204871e370e5e1",
        "cp310": "731cb5f7fb2ac677a058616c885ede5c9ec2c1f5a6baf8baebe252d9a1fc1dfd",
        "cp311": "f13566b84a1e76c16e8a0c82dd3e5ce5087df20cba8e5f122d3455631000e74a",
        "cp312": "8b232de53ef128078768094dde56d5a1e5f6b29f2b02f1589967f51bf9bc58f1",
        "cp313": "954cfdf214fc3b9c12b076b9de809cf3523ec0a4968ec944e9130b51f063e7c7",
    },
    "6.38.00": {
        "cp39": "f4ae80c9abc8cfc1010cd59235cb0e43a5e30a77f5063431a452d38ca3b72c74",
        "cp310": "b95f986cfb65343478dcf4330f14700013d5aac3e13ad01109e2abe2b20abaa4",
        "cp311": "0ca285327126f2def3c68f69ad618961c37f9a5b42e690e25b0d2bbeeef3dad4",
        "cp312": "9f3adfd54c324cdf46013094f6a9e38d259a61f3c485853ce5879d55c0f5c7b2",
        "cp313": "b301b705fbd35209d5e3014e63d6c218fd70f63e2e4d45d3a3cd2a6deb3728ac",
        "cp314": "13589051ce1542ba002e9c797bb91aba96dffe69523bb8afe405fb499c87257c",
    },
    "6.39.01": {
        "cp39": "bb0daf3a772d41a073e27e22528e4748054adffabdfa3e64511d1a0f51ec160d",
        "cp310": "433df186e1ba992d92a839c7636844ec91192e64413e6aee80b7c32e5e2ad350",
        "cp311": "25a5c1a4f41a8ccfd389ab997496275b434c999b74b1a9f9c3de31e1c91813cf",
        "cp312": "5b4cae5b0fa49f31cb230d6c64cc7ae8338addd88176743610c4ee651a742aa7",
        "cp313": "7c2c93f4ca730aba718c4204717ff563267841d332b9830690476db7af0b0c4e",
        "cp314": "22553fc094bb186a6712c501c880a6a526f2ebae40e7fdb59b1aa7f591b31c9f",
    },
    "6.40.00": {
        "cp310": "9906c131dadb71d137c77a274d11213bde88fe8c2cc81a1ce42c2486026a062a",
        "cp311": "3aec82a04f1464f663f15dd895825068f5842edbde867d8fb3f15d04d66ffad7",
        "cp312": "7dbebe69a8449e60da2c7c4977d2fd377e6f86277d7e22f0190ba2d5e17c9cfb",
        "cp313": "d0d59b993b563ac4db2cc4de7950a3f346a06ec207298f9a0b222a97f1a024ca",
        "cp314": "0bffbb476896bf7a3eef680bae86e13120da9956d859b4207c7b5a056e496d66",
    },
}


def find_wheel_sha256(version: str) -> str:
    """Find the SHA-256 of a release's wheel for this interpreter; '' when unknown."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return ""
    return WHEEL_SHA256.get(version, {}).get(f"cp{sys.version_info[0]}{sys.version_info[1]}", "")
