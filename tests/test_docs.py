"""The documentation site keeps up with the code: navigation, table of methods, API pages, quoted messages, links."""

import ast
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import agentenv
from agentenv import errors
from agentenv.cli.main import COMMANDS
from agentenv.core.options import load_entry
from agentenv.core.registry import registered
from agentenv.core.scoring.scorers import SCORERS
from agentenv.trainers.config.config_files import load_config, presets
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.estimators import ESTIMATORS
from agentenv.trainers.learner.losses import OBJECTIVES
from agentenv.trainers.loop import monitors
from agentenv.trainers.selfplay.games import GAMES
from agentenv.trainers.strategies.strategies import STRATEGIES
from agentenv.trainers.task_sampling.samplers import SAMPLERS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
API = sorted((DOCS / "api").glob("*.md"))
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")

REGISTRIES: dict[str, Collection[str]] = {
    "loss.estimator": ESTIMATORS,
    "loss.objective": OBJECTIVES,
    "rollout.sampler": SAMPLERS,
    "rollout.strategy": STRATEGIES,
    "rollout.strategy_options.game": GAMES,
    "agentenv synthesize": [
        name.removeprefix("synthesize ") for name in COMMANDS if name.startswith("synthesize ")
    ],
    "env.id": [id.removeprefix("agentenv/") for id in registered() if id.startswith("agentenv/")],
}


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """What stands in ``page`` under the heading ``title``."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the table in ``text``, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def methods(key: str = "") -> list[list[str]]:
    """The rows of the table of methods, or those of what plugs into ``key``."""
    table = rows(section(text_of(DOCS / "methods.md"), "The table"))
    return [cells for cells in table if not key or cells[3].strip("`") == key]


def named_in(nav: Any) -> set[str]:
    """The pages that a navigation of MkDocs lists."""
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, Mapping) else nav
    return set().union(*map(named_in, parts))


def test_the_navigation_lists_every_page_and_no_other() -> None:
    hooks = text_of(DOCS / "site_hooks.py")
    added = set(re.findall(r'": "([\w-]+\.md)",', hooks))
    listed = named_in(yaml.safe_load(text_of(ROOT / "mkdocs.yml"))["nav"])
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES} | added


@pytest.mark.parametrize("key", REGISTRIES)
def test_the_table_of_methods_is_the_registry(key: str) -> None:
    assert sorted(name.strip("`") for name, *_ in methods(key)) == sorted(REGISTRIES[key])


@pytest.mark.parametrize("key", REGISTRIES)
def test_every_method_cites_its_paper(key: str) -> None:
    for name, _, source, *_ in methods(key):
        ids = re.findall(r"\[arXiv:(\d{4}\.\d{5})\]\(https://arxiv\.org/abs/(\d{4}\.\d{5})\)", source)
        assert all(shown == linked for shown, linked in ids)
        assert ids or "this project" in source or "(no arXiv id)" in source, name


def test_every_method_names_its_file() -> None:
    for name, _, _, plugs_into, file, *_ in methods():
        key, path = plugs_into.strip("`"), file.strip("`")
        assert key in (*REGISTRIES, "a key of its own", "a command"), (name, key)
        assert (ROOT / "agentenv" / path).is_file(), (name, file)
        if key in CITED:
            registry = REGISTRIES[key]
            assert isinstance(registry, Mapping)
            entry = implementation(registry[name.strip("`")])
            assert f"agentenv/{path}" == entry.__module__.replace(".", "/") + ".py", name


NAMED_BY: dict[str, Callable[[TrainConfig], tuple[str, ...]]] = {
    "loss.estimator": lambda config: (config.loss.estimator,),
    "loss.objective": lambda config: (config.loss.objective,),
    "rollout.sampler": lambda config: (config.rollout.sampler,),
    "rollout.strategy": lambda config: (config.rollout.strategy, config.evaluation.strategy),
    "rollout.strategy_options.game": lambda config: (str(config.rollout.strategy_options.get("game", "")),),
    "env.id": lambda config: (config.env.id.removeprefix("agentenv/"),),
}
"""What each key has in a configuration, all of them where it has several."""


def shipped_configurations() -> dict[str, TrainConfig]:
    """Every example by its path and every preset by its name, as the table of methods names them."""
    examples = {f"examples/{path.name}": path for path in sorted((ROOT / "examples").glob("*.toml"))}
    return {name: load_config(path) for name, path in examples.items()} | {
        name: load_config(name) for name in presets()
    }


def test_every_preset_of_a_method_uses_it_and_none_is_left_out() -> None:
    shipped = shipped_configurations()
    for key, used in NAMED_BY.items():
        for method, _, _, _, _, cell, _ in methods(key):
            using = {name for name, config in shipped.items() if method.strip("`") in used(config)}
            named = set(re.findall(r"`([^`]+)`", cell))
            assert named <= using, (method, named - using)
            assert bool(named) == bool(using), (method, using)
            assert named or cell == "none", (method, cell)


def test_every_other_part_names_presets_that_are_shipped() -> None:
    shipped = shipped_configurations()
    for key, _, _, _, _, cell, _ in (*methods("a key of its own"), *methods("a command")):
        named = set(re.findall(r"`([^`]+)`", cell))
        assert named <= shipped.keys(), (key, named - shipped.keys())
        assert named or cell == "none", (key, cell)


def implementation(entry: Any) -> Any:
    """The function or class that an entry of a registry names."""
    return load_entry(entry) if isinstance(entry, str) else entry.function


CITED = ("loss.estimator", "loss.objective", "rollout.sampler", "rollout.strategy")


@pytest.mark.parametrize("key", CITED)
def test_every_method_cites_its_paper_where_it_is_defined(key: str) -> None:
    registry = REGISTRIES[key]
    assert isinstance(registry, Mapping)
    for name, _, source, *_ in methods(key):
        docstring = implementation(registry[name.strip("`")]).__doc__ or ""
        cited = re.findall(r"arXiv:(\d{4}\.\d{5})", docstring)
        assert cited or "no arXiv id" in docstring or "this project's own" in docstring, name
        assert set(cited) == set(re.findall(r"\[arXiv:(\d{4}\.\d{5})\]", source)), name


def test_the_table_of_scorers_is_the_registry() -> None:
    table = rows(section(text_of(DOCS / "evaluation.md"), "The scorers"))
    assert [name.strip("`") for name, *_ in table] == list(SCORERS)


def test_the_api_reference_holds_every_public_name() -> None:
    shown = set().union(*(re.findall(r"^::: agentenv\.(\w+)$", text_of(page), re.M) for page in API))
    assert shown == set(agentenv.__all__)


def test_the_api_reference_holds_every_public_name_of_the_sub_packages() -> None:
    entries = set().union(*(re.findall(r"^::: ([\w.]+)$", text_of(page), re.M) for page in API))
    objects = {id(pkgutil.resolve_name(entry)) for entry in entries}
    modules = [entry for entry in entries if isinstance(pkgutil.resolve_name(entry), ModuleType)]
    missing = [
        f"{package}.{name}"
        for package in sub_packages()
        for name, found in vars_of(package).items()
        if id(found) not in objects and getattr(found, "__module__", "") not in modules
    ]
    assert missing == []


def sub_packages() -> list[str]:
    """Every package below ``agentenv`` that hands names on."""
    found = pkgutil.walk_packages(agentenv.__path__, "agentenv.")
    return [module.name for module in found if module.ispkg]


def vars_of(package: str) -> dict[str, Any]:
    """What ``package`` names in ``__all__``."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in getattr(module, "__all__", ())}


@pytest.mark.parametrize("page", API, ids=lambda path: path.stem)
def test_what_the_api_reference_names_is_there(page: Path) -> None:
    for name in re.findall(r"^::: ([\w.]+)$", text_of(page), re.M):
        assert pkgutil.resolve_name(name) is not None


def test_the_list_of_commands_has_every_command() -> None:
    shown = re.findall(r"^\| `agentenv ([\w .-]+)", text_of(DOCS / "commands.md"), re.M)
    assert [name for name in COMMANDS if not any(f"{line} ".startswith(f"{name} ") for line in shown)] == []


KEYS = TrainConfig().model_dump()
_SECTIONS = "|".join(key for key, value in KEYS.items() if isinstance(value, dict))
KEY = re.compile(rf"(?:`|--)((?:{_SECTIONS})\.[\w.]*\w\b)(?!\()")
# An option of verifiers, and files of question sets.
OTHERS = {"env.retries", "dev.json", "train.json", "test.json"}


def is_key(name: str) -> bool:
    """Whether a configuration has the dotted key ``name``; tables that are empty by default hold options of any name."""
    found: Any = KEYS
    for part in name.split("."):
        if found == {}:
            return True
        if not (isinstance(found, dict) and part in found):
            return False
        found = found[part]
    return True


@pytest.mark.parametrize("page", [*PAGES, *OUTSIDE], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_keys_of_a_configuration_that_a_page_names_exist(page: Path) -> None:
    named = set(KEY.findall(text_of(page))) - OTHERS
    assert [name for name in named if not is_key(name)] == []


def test_the_errors_that_troubleshooting_names_exist() -> None:
    page = text_of(DOCS / "troubleshooting.md")
    named = set(re.findall(r"`((?:[A-Z][a-z]+){2,})\b", page))
    assert named
    assert [name for name in named if not hasattr(errors, name)] == []


def test_the_warnings_that_troubleshooting_quotes_are_those_of_the_monitors() -> None:
    tree = ast.parse(text_of(Path(monitors.__file__)))
    told = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
    ]
    table = section(text_of(DOCS / "troubleshooting.md"), "Warnings of the monitors during training")
    quoted = [cells[0].strip("`").replace("%", "") for cells in rows(table)]
    for warning in quoted:
        pattern = ".*".join(re.escape(piece.strip()) for piece in warning.split("..."))
        assert any(re.search(pattern, sentence) for sentence in told), warning
    assert len(quoted) >= len(monitors.COLLAPSES)


@pytest.mark.parametrize("page", [*PAGES, *OUTSIDE], ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    generated = set(re.findall(r'": "([\w-]+\.md)",', text_of(DOCS / "site_hooks.py")))
    links = [link for link in LINK.findall(text_of(page)) if link not in generated]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_one_version_stands_everywhere() -> None:
    version = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["version"]
    citation = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    released = re.search(r"^## (\S+) - (\S+)$", text_of(ROOT / "CHANGELOG.md"), re.M)
    assert released is not None
    assert (citation["version"], str(citation["date-released"])) == (released[1], released[2])
    assert released[1] == version


def test_what_follows_an_empty_line_within_a_list_item_is_indented_by_four_and_ends_with_one() -> None:
    """The site would otherwise run the items after it together in one paragraph."""
    by_less, without_end = re.compile(r"\n\n {1,3}\S.*"), re.compile(r"\n {4}(?![-*] )\S.*\n[-*] .*")
    pages = {path.name: text_of(path) for path in PAGES}
    assert {name: found for name, page in pages.items() if (found := by_less.findall(page))} == {}
    assert {name: found for name, page in pages.items() if (found := without_end.findall(page))} == {}
