import re
from html.parser import HTMLParser

import pytest

from control.domain.routing import Reason
from webapp.page_registry import PAGES
from webapp.render import TEMPLATES
from webapp.strings import LANGUAGES, LOCALES, choose_language, load_strings, placeholders

ENGLISH = load_strings("en")
TEXTS = {language: load_strings(language).texts for language in LANGUAGES}
# What is the same in every language: names, units and formats.
UNITS = frozenset(["s", "ms", "tok", "MB", "Mb", "r", "v"])
SAME_EVERYWHERE = UNITS | {
    "PDD",
    "TTFT",
    "TPOT",
    "P99",
    "P",
    "curl",
    "YAML",
    "CSV",
    "JSON",
    "UTC",
    "Esc",
    "g",
    "d",
    "x",
}
READ_OUT = {"title", "aria-label", "placeholder", "alt"}
STATIC_SCRIPTS = TEMPLATES.parent.parent / "static"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_the_same_keys_and_placeholders(language):
    assert TEXTS[language].keys() == TEXTS["en"].keys()
    for key, text in TEXTS[language].items():
        assert placeholders(text) == placeholders(TEXTS["en"][key]), key
        assert text.strip(), key


def test_a_language_is_a_file_and_every_file_is_a_language():
    assert {path.stem for path in LOCALES.glob("*.toml")} == set(LANGUAGES)


def test_chinese_is_really_chinese():
    letters = {key for key, text in TEXTS["en"].items() if len(re.findall(r"[A-Za-z]{3,}", text)) >= 3}
    same = {key for key in letters if not re.search(r"[\u4e00-\u9fff]", TEXTS["zh"][key])}
    assert same == set()


def test_every_page_and_reason_has_its_name():
    assert all(ENGLISH.has(f"pages.{entry.key}") for entry in PAGES)
    assert all(ENGLISH.has(f"reason.{reason.wire}") for reason in Reason)


def test_shortcuts_and_paths_of_pages_are_unlike():
    for field in ("key", "path", "shortcut"):
        values = [getattr(entry, field) for entry in PAGES]
        assert len(set(values)) == len(values)
    assert sum(entry.is_primary for entry in PAGES) <= 4


class Reader(HTMLParser):
    """Collects what a person would read or hear."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.is_code = False

    def handle_starttag(self, tag, attributes):
        self.is_code = tag in {"script", "style", "code", "pre"}
        self.found += [value for name, value in attributes if name in READ_OUT and value]

    def handle_endtag(self, tag):
        self.is_code = False

    def handle_data(self, text):
        if not self.is_code:
            self.found.append(text)


def bare_texts(source):
    """Words of a template that stand in it and not among the texts."""
    source = re.sub(r"{#.*?#}|{%.*?%}", "", source, flags=re.DOTALL)
    reader = Reader()
    reader.feed(re.sub(r"{{.*?}}", "", source, flags=re.DOTALL))
    words = re.findall(r"[^\W\d_]+", " ".join(reader.found))
    return [word for word in words if word not in SAME_EVERYWHERE]


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: str(path.relative_to(TEMPLATES)))
def test_no_template_holds_bare_text(path):
    source = path.read_text()
    if path.name == "docs.html":
        source = source.replace("openapi.json", "").replace("/api/v1", "")
    assert bare_texts(source) == []


def test_bare_text_would_be_found():
    assert bare_texts('<p title="Close">{{ t("a.b") }} Hello</p>') == ["Close", "Hello"]


def used_keys(source):
    return set(re.findall(r"""\bt\(\s*["']([\w.]+\.[\w]+)["']\s*[,)]""", source))


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: str(path.relative_to(TEMPLATES)))
def test_every_text_that_a_template_names_exists(path):
    assert {key for key in used_keys(path.read_text()) if not ENGLISH.has(key)} == set()


@pytest.mark.parametrize("path", sorted(STATIC_SCRIPTS.glob("*.js")), ids=lambda path: path.name)
def test_every_text_that_a_script_names_exists(path):
    wanted = {key.replace(".", ".js.", 1) for key in used_keys(path.read_text())}
    assert {key for key in wanted if not ENGLISH.has(key)} == set()


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("zh", "en", "zh"),
        ("xx", "de, zh-CN;q=0.8, en;q=0.5", "zh"),
        ("", "en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("", "zh;q=0, de", "en"),
        ("", "zh;q=x", "en"),
        ("", "", "en"),
    ],
)
def test_language_is_the_chosen_one_or_the_first_that_there_is(cookie, accepted, language):
    assert choose_language(cookie, accepted) == language


def test_a_text_without_its_value_or_without_a_name_is_an_error():
    with pytest.raises(KeyError):
        ENGLISH("ago.minutes")
    with pytest.raises(KeyError):
        ENGLISH("ago.never")


async def test_a_page_comes_in_the_language_that_was_asked_for(admin):
    assert '<html lang="zh-Hans"' in (await admin.get("/", headers={"Accept-Language": "zh-CN"})).text
    admin.cookies.set("pdd_language", "en")
    assert '<html lang="en"' in (await admin.get("/", headers={"Accept-Language": "zh-CN"})).text
