"""Links of all pages lead to files and headings that exist, images have a text, and named files exist.

The site's build (`make docs`) checks the same links as the site has them. Addresses of the web are not
followed.
"""

import re
from pathlib import Path

import pytest

from tests.floors import ROOT

TOP = (".github", "based_jax", "benchmarks", "docs", "pallas_kernels", "papers", "results", "tests", "train")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for top in TOP for page in sorted((ROOT / top).rglob("*.md")))]
SOURCES = [
    *(file for top in TOP if top != "tests" for file in sorted((ROOT / top).rglob("*.py"))),
    *(ROOT / name for name in ("Makefile", ".ci/run", "pyproject.toml", "mkdocs.yml")),
]

_CODE = re.compile(r"^( *)(`{3,}).*?^\1\2|(?<!`)`[^`\n]+`(?!`)", flags=re.S | re.M)
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_FILE = re.compile(
    r"(?<![\w/.:-])((?:docs|tests|benchmarks|based_jax|pallas_kernels|papers|train|results|\.ci|\.github)/[\w/.-]*"
    r"\.(?:md|py|json|png|svg|ipynb|npz|txt|html|css|yml|toml))\b(#[\w-]+)?"
)

WANTED = {
    r"[A-Z]+(?:-[a-z-]+)?\.(?:py|json)$": "a name to replace, such as based_jax/mixers/NAME.py",
    r"^results/evals/": "what the commands beside them write, of checkpoints that are not here",
}
"""Pattern of file names that need not exist, and why."""


def name_of(page: Path) -> str:
    """Return the page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return the ids of a page's headings, as code hosts and the site make them."""
    text = re.sub(r"^( *)(`{3,}).*?^\1\2", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    found: set[str] = set(re.findall(r'\bid="([\w-]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().lower().replace(" ", "-"))
    return found


def dead(page: Path, link: str) -> bool:
    """Whether a relative link of a page leads nowhere."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere_and_images_say_what_they_show(page):
    """A sentence for whom cannot see them, at least of three words; on the pages no image is a bare tag."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    images = _IMAGE.findall(text)
    links = [*_LINK.findall(text), *(link for _, link in images)]
    assert [link for link in links if not re.match(r"\w+:", link) and dead(page, link)] == []
    assert [link for words, link in images if len(words.split()) < 3] == []
    assert "<img" not in text


def test_files_named_in_sources_and_pages_exist():
    missing = {
        f"{name_of(file)}: {name}{anchor}"
        for file in [*SOURCES, *PAGES]
        for name, anchor in _FILE.findall(file.read_text(encoding="utf-8"))
        if all(dead(here, name + anchor) for here in (ROOT / "README.md", file))
        and not any(re.search(each, name) for each in WANTED)
    }
    assert missing == set()


def test_dead_links_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `thing`, and [two](other.md)\n\n```\n# none\n```\n")
    assert anchors(page) == {"one-thing-and-two"}
    assert not dead(page, "#one-thing-and-two")
    assert dead(page, "#none")
    assert dead(page, "nowhere.md")
    assert _LINK.findall("[`a[0]`](x.md) ![some words](y.png) [b](z.md#c)") == ["x.md", "z.md#c"]
    assert _FILE.findall("see docs/kernels.md#a, not https://some.org/docs/a.md") == [
        ("docs/kernels.md", "#a")
    ]
