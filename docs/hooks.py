"""What `mkdocs build` adds to the pages of docs/: the API reference, the notebooks, and linked files.

Pages link to files of the repository as on a code host (``../CONTRIBUTING.md``). Those files become part of
the site below `repository/`: Markdown and Python as pages, everything else as it is.
"""

import json
import posixpath
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import api

sys.path.pop(0)

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository"
"""folder of the site with the linked files from outside of docs/"""
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "papers/README.md", "tests/README.md")
"""in the navigation without being linked"""
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the linked files."""
    for page, text in api_pages().items():
        files.append(File.generated(config, f"api/{page}.md", content=text))
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        name = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, name, content=notebook_page(notebook)))
    for path in linked_files():
        if path.suffix == ".py":
            text = f"# {path.as_posix()}\n\n````python\n{(ROOT / path).read_text(encoding='utf-8')}\n````\n"
            files.append(File.generated(config, site_path(path), content=text))
        else:
            files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where the site has the file, and keep pages about the papers out of the search."""
    if page.file.src_uri.startswith((f"{OUTSIDE}/papers/", "options.md")):
        page.meta["search"] = {"exclude": True}
    here = repository_path(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = normal(here.parent, link[2])
        where = posixpath.relpath(site_path(target), posixpath.dirname(page.file.src_uri) or ".")
        return f"{link[1]}{where}{link[3]}"

    return _outside_code(markdown, moved)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML, which browsers show without a script."""

    def formula(found: re.Match[str]) -> str:
        tex = found[2].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return convert(tex, display="block" if found[1] == "div" else "inline")

    return _MATH.sub(formula, html)


def api_pages() -> dict[str, str]:
    """Return the Markdown of every page of the API reference, by its name."""
    pages = {}
    others = {page: names for page, names in api.everything().items() if page != "based_jax"}
    elsewhere = {name.source: page for page, names in others.items() for name in names}
    for page, modules in (api.PAGES | api.COMMAND_PACKAGES).items():
        parts = [f"# {modules[0] if len(modules) == 1 else 'based_jax.' + page}\n"]
        for module in modules:
            names = api.public_names(module)
            if module != modules[0]:
                parts.append(f"## `{module}`\n")
            parts.append(
                _directive(module, members="false", show_root_heading="false", show_root_toc_entry="false")
            )
            if page != "based_jax":
                parts.append(_summary(names, api.groups(module)))
            parts += [_entry(page, name, elsewhere) for name in names]
        pages[page] = "\n".join(parts)
    return pages


def _summary(names: list[api.Public], groups: dict[str, str]) -> str:
    """Return a table of the names that the page documents, each with the first line of its docstring.

    Or a table for each group of names that the module has.
    """
    lines: list[str] = []
    for group in dict.fromkeys(groups.values()) or [""]:
        lines += [f"**{group}**\n"] * bool(group) + ["| name | what it is |", "|---|---|"]
        for name in names:
            short = name.name.rpartition(".")[2]
            if name.kind != "module" and _is_ours(name) and groups.get(short, "") == group:
                first = name.docstring.partition("\n")[0].replace("|", "\\|").replace("``", "`")
                lines.append(f"| [`{short}`](#{name.source}) | {first} |")
        lines.append("")
    return "\n".join(lines)


def _is_ours(name: api.Public) -> bool:
    """Whether a name is defined in this repository."""
    return name.source.startswith(("based_jax.", "pallas_kernels."))


def _entry(page: str, name: api.Public, elsewhere: dict[str, str]) -> str:
    """Return the section of a public name; the page of `based_jax` links to what other pages have."""
    shown = name.name.removeprefix("based_jax.")
    first = name.docstring.partition("\n")[0]
    if name.kind == "module":
        where = shown if shown in api.PAGES else "models"
        return f"## `{shown}`\n\n{first} See [its page]({where}.md).\n"
    if page == "based_jax" and name.source in elsewhere:
        return f"## `{shown}`\n\n{first} See [the reference]({elsewhere[name.source]}.md#{name.source}).\n"
    if not _is_ours(name):
        return f"## `{shown}`\n\nFrom {name.source.partition('.')[0]}: `{name.source}`.\n"
    return _directive(name.source, heading=shown, toc_label=shown)


def _directive(path: str, **options: str) -> str:
    """Return what mkdocstrings replaces by the documentation of an object."""
    return "\n".join(
        [f"::: {path}", "    options:", *(f"      {key}: {x}" for key, x in options.items()), ""]
    )


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts) + "\n"


def linked_files() -> list[Path]:
    """Return the files outside of docs/ that pages link to, directly or through each other."""
    found: set[Path] = set()
    todo = [*(path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md")), *map(Path, ALWAYS)]
    found.update(map(Path, ALWAYS))
    while todo:
        here = todo.pop()
        for _, link, _ in _LINK.findall(without_code((ROOT / here).read_text(encoding="utf-8"))):
            target = normal(here.parent, link)
            if target.parts[0] != "docs" and target not in found and (ROOT / target).is_file():
                found.add(target)
                todo += [target] if target.suffix == ".md" else []
    return sorted(found)


def site_path(path: Path) -> str:
    """Return where the site has a file of the repository."""
    if path.parts[0] == "docs":
        inside = path.relative_to("docs").as_posix()
        return inside.replace(".ipynb", ".md")
    # README.md would take its folder's index, and .py files are pages here.
    return f"{OUTSIDE}/{path.as_posix()}" + (".md" if path.suffix == ".py" else "")


def repository_path(site: str) -> Path:
    """Invert `site_path`."""
    inside = Path(site)
    if inside.parts[0] == OUTSIDE:
        return inside.relative_to(OUTSIDE)
    return Path("docs") / inside


def normal(folder: Path, link: str) -> Path:
    """Return the path of a link from a file of `folder`, from the repository's root."""
    return Path(posixpath.normpath((folder / link).as_posix()))


def without_code(markdown: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^(`{3,}).*?^\1", "", markdown, flags=re.S | re.M)


def _outside_code(markdown: str, change) -> str:
    parts = re.split(r"(^(?:`{3,}).*?^`{3,}[ ]*$)", markdown, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else _LINK.sub(change, part) for part in parts)
