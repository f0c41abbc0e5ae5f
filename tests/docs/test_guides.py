"""The guides' Python blocks run, page by page, top to bottom."""

import functools
import re
from pathlib import Path

import pytest

from based_jax import testing
from based_jax.mixers import registry
from based_jax.models import presets
from based_jax.ops import feature_maps
from based_jax.ops.core import implementations
from based_jax.testing import mixer
from tests.marks import slow_but

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "papers").rglob("README.md")),
    ROOT / "papers/based/dna.md",
]
SLOW = (
    *("docs/adding_a_mixer.md", "docs/concepts/contract.md"),
    *("docs/concepts/packing.md", "docs/evaluation.md", "docs/export.md", "docs/recall.md"),
    *("docs/generation.md", "docs/kernels.md", "docs/pipelines.md", "docs/scaling.md"),
    *("docs/tutorials/torch_weights.md", "papers/zoology/README.md"),
)
"""pages whose blocks compile many programs"""


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def shallow(monkeypatch, request):
    """The smallest preset with one layer, or in the slow run one of each kind: they take long to compile."""
    tiny = presets.get("based-tiny")
    schedule = "".join(sorted(tiny.mixers)) if request.config.getoption("--run-slow") else "C"
    monkeypatch.setitem(presets._presets(), "based-tiny", tiny.replace(schedule=schedule))


@pytest.fixture
def fewer_laws(monkeypatch, request):
    """Mixers are checked with short rows, and not in all forms of calls, unless in the slow run."""
    if not request.config.getoption("--run-slow"):
        monkeypatch.delitem(mixer._CHECKS, "calls of all forms")
        monkeypatch.setattr(testing, "check_mixer", functools.partial(mixer.check_mixer, length=24))


@pytest.fixture
def registry_of_its_own(monkeypatch):
    """What a page registers is forgotten after it."""
    monkeypatch.setattr(registry.MIXERS, "entries", dict(registry.MIXERS.entries))
    monkeypatch.setattr(feature_maps.MAPS, "entries", dict(feature_maps.MAPS.entries))
    monkeypatch.setattr(implementations, "_REGISTERED", {})


@pytest.mark.parametrize(
    "page",
    slow_but([page for page in PAGES if name_of(page) not in SLOW], PAGES),
    ids=name_of,
)
def test_python_blocks_run(page, unchecked, shallow, fewer_laws, registry_of_its_own, monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
        exec(compile(block, str(page), "exec"), names)
