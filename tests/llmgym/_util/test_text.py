"""Text for people: nothing in it can act on a terminal, and differences are shown where they begin."""

from llmgym._util.text import describe_message, first_difference, message_text, printable, shorten


def test_what_a_terminal_must_not_get_is_escaped():
    assert printable("a\x1b[31mb\x9b\u202e\ud800\r") == "a\\x1b[31mb\\x9b\\u202e\\ud800\\r"
    assert printable("é 漢 \U0001f600\n\tx") == "é 漢 \U0001f600\n\tx"
    printable("".join(map(chr, range(0x110000)))).encode()  # lone surrogates too


def test_a_text_is_shortened_to_one_line():
    assert shorten("a\n  b", 3) == "a b"
    assert shorten("abcde", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"


def test_two_texts_are_shown_around_their_first_difference():
    assert first_difference("same left", "same right") == ("same left", "same right")
    assert first_difference("x" * 20 + "left" + "y" * 9, "x" * 20 + "r", width=8) == ("…xxleftyy…", "…xxr")
    assert first_difference("ab", "abc", width=8) == ("ab", "abc")


def test_a_message_as_text():
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "so\x1b", "reasoning_content": "hm", "tool_calls": [call]}
    assert describe_message(message) == ("assistant", '(reasoning) hm\nso\\x1b\nadd({"a": 1})')
    assert message_text({"role": "tool", "name": "add", "content": "2"}) == "[tool add] 2"
    assert message_text({"role": "tool", "content": ""}) == "[tool]"
