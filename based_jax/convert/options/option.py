"""One argument of the authors' code, as the tables of this package list it."""

from typing import NamedTuple

STATUSES = ("same", "renamed", "ignored", "refused")


class Option(NamedTuple):
    """An argument of a constructor, or an entry of a config.

    A table maps the import path of a class there to its options, in the order of its signature.
    """

    name: str
    default: str
    """as printed there; "" for a required argument"""
    ours: str
    """our name of it; "" if none"""
    status: str
    """same, renamed, ignored (their code ignores it, so do we) or refused: other values than `note` says"""
    note: str
    """why, or what differs"""
