"""Extends mkdocs: adds the generated pages, and turns links to files of the repository into links to its host.

Each `docs/generate_*.py` defines ``pages()``, which returns the Markdown of each of its pages by the page's path below
`docs/`. Generated pages are made at each build and never committed.
"""

import importlib.util
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
REPOSITORY = "https://github.com/llmgym/llmgym/blob/main"
LINK = re.compile(r"(\]\()((?:\.\./|[\w-]+/)*[\w.-]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that the generators write."""
    for generator in sorted(DOCS.glob("generate_*.py")):
        spec = importlib.util.spec_from_file_location(generator.stem, generator)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for path, text in module.pages().items():
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/, or lead to a script in it, at the repository's host. A missing file is an error."""

    def at_host(link: re.Match[str]) -> str:
        target = (DOCS / page.file.src_uri).parent.joinpath(link[2]).resolve()
        path = target.relative_to(DOCS.parent).as_posix() if target.is_relative_to(DOCS.parent) else ""
        if path.startswith("docs/") and target.suffix != ".py":
            return link[0]  # mkdocs checks it
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: there is no {link[2]}")
        return f"{link[1]}{REPOSITORY}/{path}"

    return LINK.sub(at_host, markdown)
