"""Describe an argument of the authors' code, a row of this package's tables."""

from typing import NamedTuple

STATUSES = ("same", "renamed", "ignored", "refused")


class Option(NamedTuple):
    """An argument of a constructor in the authors' code, or an entry of a config.

    A table maps the import path of their class to its options, in the order of the signature.
    """

    name: str
    default: str
    """their default as text; "" for a required argument"""
    ours: str
    """our name; "" if none"""
    status: str
    """same, renamed, ignored (no effect on results) or refused (only the default, or the values in `note`)"""
    note: str
    """the reason, or the difference"""
