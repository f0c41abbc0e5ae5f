"""Parameter counts that the papers print for our presets, and why ours differ."""

import json
from pathlib import Path
from typing import NamedTuple


class Printed(NamedTuple):
    """A paper's number for a preset."""

    millions: float
    """parameters; those of the released checkpoint if there is one"""
    source: str
    """table of the paper"""
    remark: str = ""
    """explanation of a difference of half a percent or more, and other facts needed to compare"""
    settings: str = ""
    """printed hyperparameters that differ from the preset's, and why"""


_FILE = Path(__file__).with_name("parameters.json")

PRINTED = {preset: Printed(**row) for preset, row in json.loads(_FILE.read_text(encoding="utf-8")).items()}
"""Printed counts by preset."""
