"""The page in a real browser: what clicks and filters show, and that no text of an episode runs."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browser import CHROMIUM, Browser
from recorded import episode, message_with_call, write_training_run

from llmgym import Turn
from llmgym.episode import StopReason
from llmgym.records import write_episodes
from llmgym.viewer import write_view

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]

READY = "document.documentElement.dataset.ready"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def open_view(browser, run, out, **options):
    write_view(run, out, **options)
    browser.open(out)
    browser.wait(READY)


def wait_for(browser, kind):
    """Wait until what was clicked is shown on the right: an episode, its tokens, a group or a task."""
    browser.wait(f"document.querySelector('#detail').dataset.shown === {kind!r}")


def texts(browser, selector):
    return browser.evaluate(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")


def assert_quiet(browser):
    """Nothing was asked for but the file itself, and nothing was run, refused or opened."""
    assert [event["type"] for event in browser.reported("Network.requestWillBeSent")] == ["Document"]
    for method in ("Page.javascriptDialogOpening", "Runtime.exceptionThrown", "Log.entryAdded", "Page.windowOpen"):
        assert browser.reported(method) == []


@pytest.fixture
def listener():
    """Counts the requests that reach a server on this machine."""
    hits: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hits.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", hits
    server.shutdown()
    thread.join()
    server.server_close()


def hostile(url: str) -> list[str]:
    """Twenty texts, each of which runs a script or sends a request where it is taken for markup, code or a path."""
    run = f"window.hit=1;new Image().src='{url}/run'"
    return [
        f"<script>{run}</script>",
        f"</script><script>{run}</script>",
        f"<!--<script>--></script><script>{run}</script>",
        f"<img src=x onerror=\"{run}\">",
        f"<img src='{url}/image'>",
        f"<svg onload=\"{run}\"></svg>",
        f"<svg><script>{run}</script></svg>",
        "<iframe srcdoc=\"<script>parent.hit=1</script>\"></iframe>",
        f"<iframe src='{url}/frame'></iframe>",
        f"<object data='{url}/object'></object>",
        f"<link rel=stylesheet href='{url}/style'>",
        f"<style>@import '{url}/import'; * {{ background: url('{url}/background') }}</style>",
        f"<meta http-equiv=refresh content='0;url={url}/refresh'>",
        f"<base href='{url}/base/'>",
        f"<form action='{url}/form'><input autofocus onfocus=\"{run}\"></form>",
        f"<details open ontoggle=\"{run}\">x</details>",
        f"<a href=\"javascript:{run}\">x</a> <video src='{url}/video' autoplay></video>",
        f"\"><img src=x onerror=window.hit=1> ' onmouseover='{run}' style='background:url({url}/attribute)",
        f"${{{run}}} {{{{constructor.constructor(\"{run}\")()}}}} `+{run}+`",
        f"__proto__ constructor \u202e\u0000\u2028</title></style></textarea></noscript><img src='{url}/tail'>",
    ]  # fmt: skip


def poisoned(text: str, place: int):
    """An episode that holds the text wherever an episode holds text."""
    made = episode(text, prompt=text, answer=text, result=text, tokens=True, phase=text, template_hash=text)
    made.turns[0].message = message_with_call(text, text, content=text)
    made.turns.insert(1, Turn({**message_with_call("call", '{"' + "key" + '": 1}'), "reasoning_content": text}))
    made.turns.append(
        Turn(raw_text=text, failure=text, history_edited=True, observation=[{"role": text, "content": text}])
    )  # type: ignore[typeddict-item]
    made.turns[0].tokens.finish_reason = text
    made.tool_specs = [
        {"type": "function", "function": {"name": text, "description": text, "parameters": {text: text}}}
    ]
    made.initial_messages.append({"role": "system", "content": text, "name": text})
    made.metrics = {text: text, "__proto__": 1, "constructor": text}
    made.stop_detail = made.close_error = made.env_id = text
    made.stop_reason = list(StopReason)[place % 7]
    return made


@pytest.mark.slow
def test_no_text_of_an_episode_runs_or_sends_a_request(browser, tmp_path, listener):
    url, hits = listener
    payloads = hostile(url)
    assert len(set(payloads)) == 20
    file = tmp_path / "<img src=x onerror=alert(1)>.jsonl"
    write_episodes(file, [poisoned(text, place) for place, text in enumerate(payloads)])
    open_view(browser, file, tmp_path / "page.html")
    browser.click("#tab-browse")
    for place in range(20):
        browser.evaluate(f"document.querySelectorAll('.row')[{place}].click()")
        start = payloads[place].split("\u202e")[0][:150]  # an id is cut after 200 characters
        wait_for(browser, "episode")
        assert browser.evaluate(f"document.querySelector('#detail .id').textContent.startsWith({json.dumps(start)})")
        browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert texts(browser, "#detail")[0].count(start) >= 12
        browser.click("#detail .tools button", "tokens")
        wait_for(browser, "tokens")
        browser.click("#detail .tools button", "this task")
        wait_for(browser, "task")
    for mode in ("group", "task", "episode"):
        browser.click(".modes button", mode)
        browser.click(".row")
        wait_for(browser, mode)
    browser.click("#filter-deep")
    browser.type("#filter-text", "onerror=")
    browser.wait("document.querySelector('.count').textContent.startsWith('2 episodes')")
    browser.click("#tab-overview")
    assert browser.evaluate(
        "window.hit === undefined && document.querySelectorAll('img, iframe, object, link, base, form, a').length === 0"
    )
    assert browser.evaluate("document.title.startsWith('<img src=x')")
    assert_quiet(browser)
    assert hits == []


@pytest.mark.slow
def test_the_same_texts_do_run_where_a_page_takes_them_as_markup(browser, tmp_path, listener):
    """Else the test above would prove nothing."""
    url, hits = listener
    caught = 0
    for place, text in enumerate(hostile(url)):
        hits.clear()
        page = tmp_path / f"{place}.html"
        page.write_text(f'<!doctype html><body><div title="{text}"></div>{text}</body>', encoding="utf-8")
        browser.call("Page.navigate", url=page.as_uri())
        for _ in range(10):
            with contextlib.suppress(AssertionError):  # the page has just left for another one
                if hits or browser.evaluate("window.hit"):
                    caught += 1
                    break
            time.sleep(0.1)
    assert caught >= 15  # the others need a click, an older template engine or another place


def test_a_click_on_a_stop_reason_lists_its_episodes(browser, tmp_path):
    open_view(browser, write_training_run(tmp_path / "run"), tmp_path / "page.html")
    assert texts(browser, ".stop-row .name") == ["terminated", "max_turns"]
    browser.click(".stop-row", "max_turns")
    browser.wait("document.querySelectorAll('.row').length === 2")
    assert texts(browser, ".count") == ["2 episodes of 9 · mean reward 0.5"]
    assert browser.evaluate("document.querySelector('#overview').hidden")
    browser.click(".row")
    wait_for(browser, "episode")
    assert texts(browser, "#detail .badge.stop") == ["max_turns"]
    assert texts(browser, "#detail .tool-name") == ["lookup"]
    assert texts(browser, "#detail .argument") == ["keyrose"]
    assert texts(browser, "#detail .role-tool .text") == ["48"]
    assert_quiet(browser)


def test_filters_and_orders(browser, tmp_path):
    run = write_training_run(tmp_path / "run")
    file = run / "episodes" / "val-000000.jsonl"
    write_episodes(file, [episode("moss", phase="val", step=0, result="a word nobody else says: Ämbatu", reward=0.95)])
    open_view(browser, run, tmp_path / "page.html")
    browser.click("#tab-browse")

    def listed():
        return texts(browser, ".count")[0].split(" of ")[0]

    def choose(name, value):
        browser.evaluate(
            f"(() => {{ const one = document.querySelector('#filter-{name}'); one.value = {value!r};"
            "one.dispatchEvent(new Event('change')); one.dispatchEvent(new Event('input')); })()"
        )

    assert listed() == "10 episodes"
    browser.type("#filter-text", "LILY")
    browser.wait("document.querySelectorAll('.row').length === 2")
    assert set(texts(browser, ".row .prompt")) == {"What is lily?"}
    choose("text", "ämbatu")
    browser.wait("document.querySelectorAll('.row').length === 0")
    browser.click("#filter-deep")
    browser.wait("document.querySelectorAll('.row').length === 1")
    choose("text", "")
    browser.wait("document.querySelectorAll('.row').length === 10")
    choose("reward", "success")  # a reward of 0.9 or more, as the run's settings say
    assert listed() == "4 episodes"
    choose("phase", "validation")
    assert listed() == "1 episode"
    choose("reward", "")
    choose("phase", "")
    choose("from", "2")
    browser.wait("document.querySelectorAll('.row').length === 4")
    choose("order", "best first")
    assert [text[0] for text in texts(browser, ".row .badge")] == ["1", "1", "0", "0"]
    browser.click(".modes button", "groups")
    assert listed() == "2 groups, 4 episodes"
    browser.click(".modes button", "tasks")
    assert listed() == "1 task, 4 episodes"
    assert_quiet(browser)


def test_steps_are_counted_as_in_the_metrics(browser, tmp_path):
    open_view(browser, write_training_run(tmp_path / "run"), tmp_path / "page.html")

    def tips(title, shape):
        """The labels under the pointer on a chart, from left to right."""
        return browser.evaluate(
            "(() => { const chart = [...document.querySelectorAll('figure')]"
            f".find((one) => one.querySelector('b').textContent === {title!r});"
            f"return [...chart.querySelectorAll({shape!r})].map((one) => {{ const box = one.getBoundingClientRect();"
            "const place = {clientX: box.x + box.width / 2, clientY: box.y + 1};"
            "one.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, ...place}));"
            "return document.querySelector('#tip').textContent; }); })()"
        )

    assert tips("reward", "circle.c0") == ["step 1: training 0.25", "step 2: training 0.5, validation 1"]
    assert tips("stops in training", "rect") == [
        "step 1: terminated 100 % of 4 episodes",
        "step 2: terminated 50 % of 4 episodes",
        "step 2: max_turns 50 % of 4 episodes",
    ]
    assert tips("stops in validation", "rect") == ["step 0: terminated 100 % of 1 episode"]
    browser.click("#tab-browse")
    steps = [text.split(" · ")[0] for text in texts(browser, ".row .where")]
    assert steps == ["val 0"] + ["step 1"] * 4 + ["step 2"] * 4
    browser.click(".row", "What is lily?")
    wait_for(browser, "episode")
    assert texts(browser, "#detail .pairs .pair")[0] == "step1"
    browser.click("#detail button", "side by side")
    wait_for(browser, "group")
    assert "step1" in texts(browser, "#detail .head .pair")


def test_filtered_episodes_are_no_longer_shown(browser, tmp_path):
    open_view(browser, write_training_run(tmp_path / "run"), tmp_path / "page.html", token_episodes=6)
    browser.click("#tab-browse")
    wait_for(browser, "episode")
    assert texts(browser, "#detail .id") == ["fern"]  # the first, of the validation, has no tokens
    browser.click("#filter-tokens")
    browser.wait("document.querySelector('#detail .id').textContent === 'lily'")
    assert texts(browser, ".row.selected .prompt") == ["What is lily?"]
    browser.click(".row", "What is rose?")
    browser.wait("document.querySelector('#detail .id').textContent === 'rose'")
    browser.type("#filter-text", "ros")  # rose passes, so it stays
    browser.wait("document.querySelectorAll('.row').length === 4")
    assert texts(browser, "#detail .id") == ["rose"]
    browser.click("#detail button", "this task")
    wait_for(browser, "task")
    browser.type("#filter-text", "y bush")
    wait_for(browser, "nothing")
    assert texts(browser, "#detail") == ["No episode passes these filters."]
    assert texts(browser, ".row") == []
    browser.click("#filter-tokens")
    browser.evaluate(
        "(() => { const one = document.querySelector('#filter-text'); one.value = '';"
        "one.dispatchEvent(new Event('input')); })()"
    )
    browser.wait("document.querySelector('#detail .id')?.textContent === 'fern'")
    assert_quiet(browser)


def test_a_group_is_shown_side_by_side(browser, tmp_path):
    open_view(browser, write_training_run(tmp_path / "run"), tmp_path / "page.html")
    browser.click("#tab-browse")
    browser.type("#filter-text", "lily")
    browser.wait("document.querySelectorAll('.row').length === 2")
    browser.click(".row")
    wait_for(browser, "episode")
    browser.click("#detail button", "side by side (2)")
    wait_for(browser, "group")
    assert len(texts(browser, ".column")) == 2
    first, second = browser.evaluate(
        "[...document.querySelectorAll('.column')].map((one) => { const box = one.getBoundingClientRect();"
        "return [one.querySelector('.reward').textContent, box.left, box.top]; })"
    )
    assert (first[0], second[0]) == ("1", "0")
    assert second[1] > first[1]
    assert second[2] == first[2]


def test_tokens_are_coloured_by_mask_logprob_and_advantage(browser, tmp_path):
    open_view(browser, write_training_run(tmp_path / "run"), tmp_path / "page.html", token_episodes=6)
    browser.click("#tab-browse")
    browser.click("#filter-tokens")
    browser.wait("document.querySelectorAll('.row').length === 6")  # the three groups that differ
    browser.click(".row")
    wait_for(browser, "episode")
    browser.click("#detail button", "tokens")
    wait_for(browser, "tokens")

    def look():
        return browser.evaluate(
            "[...document.querySelectorAll('.token')].map((one) => [one.textContent.trim(), one.className,"
            "one.style.getPropertyValue('--strength')])"
        )

    context, sampled = "token context", "token sampled"
    assert look() == [
        ["1", context, ""], ["2", context, ""], ["3", sampled, "35%"], ["4", sampled, "35%"],
        ["5", context, ""], ["6", sampled, "35%"],
    ]  # fmt: skip
    browser.click(".shades button", "log-probability")
    assert [one[2] for one in look()] == ["", "", "17%", "100%", "", "8%"]  # 0.5 / 3, 3 / 3, 0.25 / 3
    browser.click(".shades button", "advantage")
    assert [one[1:] for one in look() if one[1] != context] == [["token gain", "35%"]] * 3  # 0.7 / 2
    colours = browser.evaluate(
        "[...document.querySelectorAll('.token')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert colours[0] == colours[1] == colours[4] != colours[2] == colours[3] == colours[5]


def test_only_visible_rows_of_a_long_list_are_in_the_page(browser, tmp_path):
    file = tmp_path / "e.jsonl"
    write_episodes(file, [episode(f"task {number}", prompt=f"question {number}") for number in range(2_000)])
    open_view(browser, file, tmp_path / "page.html")
    assert 10 < len(texts(browser, ".row")) < 60
    browser.evaluate("document.querySelector('#list').scrollTop = 1e9")
    browser.wait("[...document.querySelectorAll('.row .prompt')].at(-1).textContent === 'question 1999'")
    assert len(texts(browser, ".row")) < 60
    browser.evaluate("document.querySelector('#list').focus()")
    browser.click(".row", "question 1998")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowDown")
    browser.wait("document.querySelector('#detail .id').textContent === 'task 1999'")


def test_a_conversation_that_was_left_out_has_a_note(browser, tmp_path):
    file = tmp_path / "e.jsonl"
    write_episodes(file, [episode("a", tokens=True), episode("b")])
    # 200,000 is kept for the page itself: room for the tokens, which come first, and for no conversation.
    open_view(browser, file, tmp_path / "page.html", max_chars=201_000)
    assert "some conversations left out" in texts(browser, "#about")[0]
    browser.click(".row")
    wait_for(browser, "episode")
    assert texts(browser, "#detail .notice")[0].startswith("This conversation was left out")
    browser.click("#detail button", "tokens")
    wait_for(browser, "tokens")
    assert len(texts(browser, ".token")) == 6


@pytest.mark.slow
def test_the_page_has_a_dark_scheme(tmp_path):
    write_view(write_training_run(tmp_path / "run"), tmp_path / "page.html")
    shades = {}
    for dark in (False, True):
        with Browser(tmp_path / f"profile-{dark}", dark=dark) as browser:
            browser.open(tmp_path / "page.html")
            browser.wait(READY)
            colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            shades[dark] = sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))
    assert shades[True] < 150 < 600 < shades[False]
