import pytest

from llmgym_trainer.tokens.parsing import HermesCalls, LlamaCalls, ParsedCall, ParseError, split_reasoning

HERMES, LLAMA = HermesCalls(), LlamaCalls()
AMBER = ParsedCall("lookup", '{"key": "amber"}')
COBALT = ParsedCall("lookup", '{"key": "cobalt"}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 42.", ("The answer is 42.", [])),
        ("", ("", [])),
        ("  spaces stay \n", ("  spaces stay \n", [])),
        ('<tool_call>{"name": "lookup", "arguments": {"key": "amber"}}</tool_call>', ("", [AMBER])),
        ('\n<tool_call>\n{"name": "lookup", "arguments": {"key": "amber"}}\n</tool_call>\n', ("", [AMBER])),
        ('<tool_call>{"arguments":{"key":"amber"},"name":"lookup"}</tool_call>', ("", [AMBER])),
        (
            'Both:\n<tool_call>{"name": "lookup", "arguments": {"key": "amber"}}</tool_call>'
            '\n<tool_call>{"name": "lookup", "arguments": {"key": "cobalt"}}</tool_call>',
            ("Both:", [AMBER, COBALT]),
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>", "y": "é"}}</tool_call>',
            ("", [ParsedCall("f", '{"x": "</tool_call>", "y": "é"}')]),
        ),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', ("", [ParsedCall("f", "{}")])),
    ],
)
def test_hermes_reads(text, expected):
    assert HERMES.split(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "lookup", "arguments": {"key": "am', "not valid JSON"),
        ("<tool_call>", "not valid JSON"),
        ("<tool_call>lookup(amber)</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "lookup", "arguments": {}}', "is not closed"),
        ('<tool_call>{"name": "lookup", "arguments": {}}}</tool_call>', "is not closed"),
        ('{"name": "lookup"}</tool_call>', "closes nothing"),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call> and then?', "text follows a tool call"),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call></tool_call>', "text follows a tool call"),
        ('<tool_call>["f"]</tool_call>', 'must be {"name"'),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', 'must be {"name"'),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', 'must be {"name"'),
        ('<tool_call>{"name": "f"}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is not a JSON value"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "cannot be written back"),
        ('<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', "cannot be written back"),
        ('<tool_call>{"name": "f\\udfff", "arguments": {}}</tool_call>', "cannot be written back"),
        ("<tool_call>" + "[" * 100_000, "not valid JSON"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "1" * 5_000 + "}}</tool_call>", "not valid JSON"),
    ],
)
def test_hermes_refuses(text, reason):
    with pytest.raises(ParseError, match=reason):
        HERMES.split(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 42.", ("The answer is 42.", [])),
        ('{"answer": 42}', ('{"answer": 42}', [])),
        ('{"name": "lookup", "parameters": {"key": "amber"}}', ("", [AMBER])),
        ('<|python_tag|>{"name": "lookup", "parameters": {"key": "amber"}}\n', ("", [AMBER])),
    ],
)
def test_llama_reads(text, expected):
    assert LLAMA.split(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "lookup", "parameters": {"key": "am', "not valid JSON"),
        ("<|python_tag|>print(1)", "not valid JSON"),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "one tool call and nothing else"),
        ('{"name": "f", "parameters": 3}', "'parameters' of 'f' must be a JSON object"),
    ],
)
def test_llama_refuses(text, reason):
    with pytest.raises(ParseError, match=reason):
        LLAMA.split(text)


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("42", False, ("", "42")),
        ("<think>\nhm\n</think>\n\n42", False, ("hm", "42")),
        ("\n<think>hm</think>42", False, ("hm", "42")),
        ("<think>\n\n</think>\n\n42", False, ("", "42")),
        ("hm\n</think>\n\n42", True, ("hm", "42")),
        ("<think>\nhm</think>", True, ("hm", "")),
    ],
)
def test_reasoning_is_split_off(text, opened, expected):
    assert split_reasoning(text, opened=opened) == expected


@pytest.mark.parametrize(
    ("text", "opened", "reason"),
    [
        ("<think>\nthe answer is 42", False, "unfinished reasoning"),
        ("the answer is 42", True, "unfinished reasoning"),
        ("42</think>", False, "stray </think>"),
        ("Sure. <think>hm</think>42", False, "stray <think>"),
        ("<think>a</think>b</think>c", False, "stray </think>"),
        ("<think>a<think>b</think>c", False, "stray <think>"),
    ],
)
def test_reasoning_out_of_place_is_refused(text, opened, reason):
    with pytest.raises(ParseError, match=reason):
        split_reasoning(text, opened=opened)
