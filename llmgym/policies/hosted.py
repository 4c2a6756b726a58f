"""Policies that ask an OpenAI-compatible chat endpoint.

What becomes of an answer, in the order of the checks:

1. No connection, a timeout, HTTP 408, 409, 429 or 5xx, or a body that is no chat completion: asked again after a
   growing wait (``Retry-After`` is honoured), a bounded number of times. Then the endpoint is lost. Only the request
   has failed, and its episode is an ERROR, when the endpoint answered others meanwhile, and after a timeout or HTTP 500
   (some servers answer so to a reply of the model that they cannot parse), unless it is the third such request in a
   row.
2. An error text on the context length: CONTEXT_OVERFLOW. One on filtered content: PARSE_FAILURE.
3. HTTP 401, 402, 404, 405, a spent quota, or, before any answer, a web page in place of one or an error text on tools:
   the endpoint is lost at once.
4. Any other error: the episode is an ERROR.
5. ``finish_reason`` "content_filter": PARSE_FAILURE. "length": CONTEXT_OVERFLOW; the text is kept.
6. Malformed by :func:`llmgym.messages.malformed_reason`, the policy of training: PARSE_FAILURE; the text is kept.
7. Otherwise a message, also when it is empty. A refusal is a message with the refusal's words.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

from llmgym._util.seeding import derive_seed
from llmgym._util.versions import install_hint
from llmgym.episode import EpisodeLimits, StopReason, Usage
from llmgym.errors import ConfigError, EndpointLostError, LLMGymError, MessageError
from llmgym.messages import Message, ToolSpec, malformed_reason, normalize_message
from llmgym.policies.sources import PolicySource
from llmgym.policy import Policy, PolicyTurn
from llmgym.task import Task

KEY_VARIABLE = "OPENAI_API_KEY"
OPENAI_URL = "https://api.openai.com/v1"

_LONGEST_WAIT_S = 60.0
_FEW_ATTEMPTS = 3
"""Tried where more would hardly help: no connection where nothing has ever answered, or HTTP 500."""
_FAILED_IN_A_ROW = 3

_CONTEXT = re.compile(
    r"context[ _-]?(length|window|size)|(prompt|input|request) is too long|reduce the length"
    r"|tokens?\b.{0,80}\b(exceeds?|longer than|must be <=)|(longer than|exceeds?) the maximum model length"
    r"|max_tokens must be at least 1",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED = re.compile(r"content[ _](filter|policy|management policy)|flagged|moderation", re.IGNORECASE)
_TITLE = re.compile(r"<title>([^<]*)</title>", re.IGNORECASE)
_TOOLS = re.compile(r"\btools?\b|tool[_-](choice|calls?|use)|function[ _-]call", re.IGNORECASE)

# Left in the text by a server without a parser for reasoning.
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)


class RequestError(LLMGymError):
    """An endpoint failed on one request; others may succeed."""


@dataclass(frozen=True)
class Retries:
    """How often a request is repeated, and for how long.

    Attributes:
        attempts: Times that a request is sent at most.
        first_wait_s: The wait before the second attempt; each further one is twice as long, a minute at most.
        total_s: No attempt begins later than this after the first.
    """

    attempts: int = 8
    first_wait_s: float = 1.0
    total_s: float = 300.0


class HostedSource(PolicySource):
    """A model behind an OpenAI-compatible chat endpoint. Use one source in one event loop.

    The key is read from the environment variable ``OPENAI_API_KEY``. It is sent to the endpoint only and
    appears in no record and no error text.

    Args:
        model: The model's name, as the endpoint knows it.
        base_url: Address of the endpoint, such as ``http://127.0.0.1:8000/v1``; OpenAI's own by default.
        temperature: Sampling temperature; None leaves it to the endpoint.
        request_timeout_s: Seconds that the endpoint has for one answer.
        retries: What happens after a failure that may pass.

    Raises:
        ConfigError: The ``openai`` package is missing, or no usable model name, address, key or temperature is given.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        temperature: float | None = 1.0,
        request_timeout_s: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        base_url = OPENAI_URL if base_url is None else base_url
        try:
            url = urlsplit(base_url)
            usable = url.scheme in ("http", "https") and url.hostname is not None and url.port != 0
        except ValueError:  # no port that can be, or a broken IPv6 address
            usable = False
        if not usable or url.hostname is None:
            raise ConfigError(f"the base URL must look like http://127.0.0.1:8000/v1, got {base_url!r}")
        if not model:
            raise ConfigError("no model name is given; an endpoint lists those it has under GET /models")
        if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
            raise ConfigError(f"temperature must be a number of at least 0, got {temperature!r}")
        self._key = os.environ.get(KEY_VARIABLE, "")
        if not self._key and not _is_local(url.hostname):
            raise ConfigError(
                f"{url.hostname} needs a key: set the environment variable {KEY_VARIABLE} (to any text when the "
                "endpoint wants none)"
            )
        try:
            import openai
        except ImportError as error:
            raise ConfigError(f"a hosted model needs the openai package: {install_hint('eval')}") from error
        self.name = model
        self._url = url
        self._timeout_s = request_timeout_s
        self._temperature = temperature
        self._retries = retries or Retries()
        self._openai = openai
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none", base_url=base_url, max_retries=0, timeout=request_timeout_s
        )
        self._answers = self._failed_in_a_row = 0
        self._reached = False
        self._sends_seed = True
        self._limit_name = "max_completion_tokens" if url.hostname == urlsplit(OPENAI_URL).hostname else "max_tokens"

    @property
    def provenance(self) -> dict[str, Any]:
        """Model, address without user and query, and temperature."""
        return {"policy": "hosted", "model": self.name, "base_url": self._address, "temperature": self._temperature}

    @property
    def _address(self) -> str:
        port = f":{self._url.port}" if self._url.port else ""
        return f"{self._url.scheme}://{self._url.hostname}{port}{self._url.path}"

    def policy(self, task: Task, *, episode_index: int, seed: int, limits: EpisodeLimits) -> HostedPolicy:
        return HostedPolicy(self, limits, seed=derive_seed(seed, task.id, episode_index))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(
        self, messages: list[Message], tool_specs: list[ToolSpec], *, seed: int, max_tokens: int | None
    ) -> dict[str, Any] | PolicyTurn:
        """Send one request, again where that may help.

        Args:
            messages: The history.
            tool_specs: The tools offered.
            seed: Forwarded; the endpoint may ignore it.
            max_tokens: Tokens the answer may have; None leaves it to the endpoint.

        Returns:
            A chat completion with one choice at least, or the turn that an error amounts to.

        Raises:
            EndpointLostError: The endpoint cannot be used any further. It is kept in :attr:`lost`.
            RequestError: Only this request failed.
        """
        start, answers_before, attempt = time.monotonic(), self._answers, 1
        while True:
            if self.lost is not None:
                raise self.lost
            body = self._body(messages, tool_specs, seed, max_tokens)
            failure = await self._send(body)
            if not isinstance(failure, _Failure):
                self._answers += 1
                self._failed_in_a_row, self._reached = 0, True
                return failure
            if not failure.may_pass:
                turn = self._settle(failure, body)
                if turn is not None:
                    return turn
                continue
            attempts = self._retries.attempts
            self._reached = self._reached or failure.status is not None
            if failure.status == 500 or not self._reached:
                attempts = min(attempts, _FEW_ATTEMPTS)
            wait = min(self._retries.first_wait_s * 2 ** (attempt - 1), _LONGEST_WAIT_S) * random.uniform(0.75, 1.0)
            wait = max(wait, failure.retry_after_s)
            passed = time.monotonic() - start
            if attempt >= attempts or passed + wait > self._retries.total_s:
                waiting = f", which asks to wait {failure.retry_after_s:.0f} s" if failure.retry_after_s else ""
                text = f"{failure.text} (attempt {attempt} of {attempts}, {passed:.0f} s after the first{waiting})"
                self._failed_in_a_row += 1
                own_fault = failure.status in (408, 500) and self._failed_in_a_row < _FAILED_IN_A_ROW
                if own_fault or self._answers > answers_before:
                    raise RequestError(text)
                self._lose(text)
            attempt += 1
            await asyncio.sleep(wait)

    def _body(
        self, messages: list[Message], tool_specs: list[ToolSpec], seed: int, max_tokens: int | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "messages": messages}
        if tool_specs:
            body["tools"] = tool_specs
        if self._temperature is not None:
            body["temperature"] = self._temperature
        if max_tokens is not None:
            body[self._limit_name] = max_tokens
        if self._sends_seed:
            body["seed"] = seed
        encoded = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")  # UTF-8 has no lone surrogates
        sent: dict[str, Any] = json.loads(encoded)
        return sent

    async def _send(self, body: dict[str, Any]) -> dict[str, Any] | _Failure:
        """Send one request once."""
        where = f"{self._url.hostname} ({self.name})"
        try:
            raw = await self._client.chat.completions.with_raw_response.create(**body)
        except self._openai.APIStatusError as error:
            response = error.response
            said = self._clean(_error_text(response.text))
            head = f"{where} answered HTTP {error.status_code}"
            return _Failure(head, said, error.status_code, _retry_after(response.headers))
        except self._openai.APITimeoutError:
            return _Failure(where, f"no answer in {self._timeout_s:g} s", status=408)
        except self._openai.APIConnectionError as error:
            cause = error.__cause__ or error
            return _Failure(where, self._clean(f"no connection ({type(cause).__name__}: {cause})"))
        try:
            completion = json.loads(raw.http_response.text)
        except (ValueError, RecursionError):
            completion = None
        if _choice(completion) is None:
            response = raw.http_response
            said = self._clean(_error_text(response.text))
            if response.headers.get("content-type", "").startswith("text/html") and not self._answers:
                return _Failure(f"{where} answered with a web page", said, status=200)
            return _Failure(f"{where} answered with no chat completion", said, status=502)
        found: dict[str, Any] = completion
        return found

    def _settle(self, failure: _Failure, body: dict[str, Any]) -> PolicyTurn | None:
        """Turn an error that would only come again into a turn or an exception; None: asked otherwise, it may work."""
        text, said, status = failure.text, failure.said, failure.status
        if status in (401, 402, 429):
            self._lose(text)
        if status in (200, 404, 405):
            asked = f"{self._address.rstrip('/')}/chat/completions"
            name = ", and is the model's name right" if status == 404 else ""
            self._lose(f"{text} (asked {asked}: does the base URL end as the endpoint wants it, often in /v1{name}?)")
        if _CONTEXT.search(said):
            return PolicyTurn(stop=StopReason.CONTEXT_OVERFLOW, detail=text)
        if status in (400, 403, 422) and _FILTERED.search(said):
            return PolicyTurn(stop=StopReason.PARSE_FAILURE, detail=text)
        if status in (400, 422) and "max_tokens" in body and "max_completion_tokens" in said:
            self._limit_name = "max_completion_tokens"
            return None
        if status in (400, 422) and "seed" in body and re.search(r"\bseed\b", said):
            self._sends_seed = False
            return None
        if status == 403 and not self._answers:
            self._lose(text)
        called = any(message["role"] == "tool" or "tool_calls" in message for message in body["messages"])
        if "tools" in body and not called and not self._answers and _TOOLS.search(said):
            self._lose(f"this endpoint takes no tools, or not these: {text}")
        raise RequestError(text)

    def _lose(self, text: str) -> NoReturn:
        if self.lost is None:
            self.lost = EndpointLostError(text)
        raise self.lost

    def _clean(self, text: str) -> str:
        """A text from outside without the key, and of bounded length."""
        if self._key:
            text = text.replace(self._key, "[key]")
        return text if len(text) <= 600 else text[:600] + "…"


class HostedPolicy(Policy):
    """Asks the endpoint of a :class:`HostedSource` in one episode.

    Tokens are counted by the endpoint: ``max_model_length`` is held against what it reported for the turn before, to
    which the messages added since then come on top unseen.
    """

    def __init__(self, source: HostedSource, limits: EpisodeLimits, *, seed: int) -> None:
        self._source, self._limits, self._seed = source, limits, seed
        self._turns = 0
        self._spent = 0

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn:
        """Ask for one turn. What each kind of answer becomes is written at the top of this module.

        Raises:
            EndpointLostError: See :meth:`HostedSource.ask`.
            RequestError: See :meth:`HostedSource.ask`.
        """
        budget, cap = self._limits.max_model_length, self._limits.max_completion_length
        left = math.inf if budget is None else budget - self._spent
        if left < self._limits.reply_reserve_tokens:
            return PolicyTurn(
                stop=StopReason.CONTEXT_OVERFLOW,
                detail=f"the {self._spent} tokens so far leave {left} of max_model_length={budget}, fewer than "
                f"reply_reserve_tokens={self._limits.reply_reserve_tokens}",
            )
        room = min(left, math.inf if cap is None else cap)
        seed = derive_seed(self._seed, self._turns) >> 33  # 31 bits: some servers take no more
        answer = await self._source.ask(
            messages, tool_specs, seed=seed, max_tokens=None if room == math.inf else int(room)
        )
        if isinstance(answer, PolicyTurn):
            return answer
        turn = _read(answer, call_id_prefix=f"call_{self._turns}_")
        self._turns += 1
        if turn.usage is not None:
            self._spent = turn.usage.prompt_tokens + turn.usage.completion_tokens
        if turn.stop is StopReason.CONTEXT_OVERFLOW:
            limit = f"max_completion_length={cap}" if room == cap else f"max_model_length={budget}"
            turn.detail = f"the turn was cut by {'the limit of the endpoint' if room == math.inf else limit}"
        elif budget is not None and self._spent > budget:
            turn = PolicyTurn(
                stop=StopReason.CONTEXT_OVERFLOW, raw_text=_raw_text(turn.message or {}), usage=turn.usage
            )
            turn.detail = f"the episode has {self._spent} tokens, more than max_model_length={budget}"
        return turn


@dataclass(frozen=True)
class _Failure:
    head: str
    said: str
    status: int | None = None
    retry_after_s: float = 0.0

    @property
    def text(self) -> str:
        return f"{self.head}: {self.said}"

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        if self.status == 429:
            return "insufficient_quota" not in self.said
        if self.status in (None, 408, 409):
            return True
        # Some servers answer 500 to what they will never take.
        return self.status >= 500 and not _CONTEXT.search(self.said) and self.status != 501


def _choice(completion: Any) -> dict[str, Any] | None:
    """The first choice of a chat completion, when it is one."""
    choices = completion.get("choices") if isinstance(completion, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return None
    withheld = choice.get("finish_reason") == "content_filter"
    return choice if withheld or isinstance(choice.get("message"), dict) else None


def _read(completion: dict[str, Any], call_id_prefix: str) -> PolicyTurn:
    """Turn a chat completion into a turn."""
    choice = _choice(completion)
    assert choice is not None  # checked when it arrived
    message, reason = choice.get("message") or {}, choice.get("finish_reason")
    usage = _usage(completion.get("usage"))
    if reason == "content_filter":
        detail = "the endpoint's content filter withheld the reply"
        return PolicyTurn(stop=StopReason.PARSE_FAILURE, detail=detail, raw_text=_raw_text(message), usage=usage)
    if reason == "length":
        return PolicyTurn(stop=StopReason.CONTEXT_OVERFLOW, raw_text=_raw_text(message), usage=usage)
    reply: dict[str, Any] = {key: message.get(key) for key in ("reasoning_content", "reasoning", "tool_calls")}
    reply |= {"role": "assistant", "content": message.get("content") or message.get("refusal")}
    try:
        normal = normalize_message(reply, call_id_prefix=call_id_prefix)
        thought = _THOUGHT.match(normal["content"])
        if thought is not None and "reasoning_content" not in normal:
            normal["reasoning_content"], normal["content"] = thought[1].strip("\n"), thought[2].lstrip("\n")
        problem = malformed_reason(normal)
    except MessageError as error:
        problem = str(error)
    if problem is not None:
        return PolicyTurn(stop=StopReason.PARSE_FAILURE, detail=problem, raw_text=_raw_text(message), usage=usage)
    return PolicyTurn(message=normal, usage=usage)


def _raw_text(message: Mapping[str, Any]) -> str:
    """The text of a reply that is not used as a message."""
    parts = [message.get(key) for key in ("reasoning_content", "reasoning", "content", "refusal", "tool_calls")]
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts if part)


def _usage(value: Any) -> Usage | None:
    counts = value if isinstance(value, Mapping) else {}
    prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return Usage(prompt, completion) if isinstance(prompt, int) and isinstance(completion, int) else None


def _error_text(body: str) -> str:
    """What the body of an error says, with its code, in whichever shape the server writes it."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        title = _TITLE.search(body)
        return title[1].strip() if title else body or "an empty body"
    for key in ("error", "detail"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        return " ".join(str(part) for part in (value["message"], value.get("code"), value.get("type")) if part)
    return value if isinstance(value, str) else body


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait; 0 when it does not say, or says it as a date."""
    value = headers.get("retry-after", "")
    return float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else 0.0


def _is_local(host: str) -> bool:
    """Whether a host is this machine or one of a private network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal", ".lan"))
    return address.is_private or address.is_loopback or address.is_unspecified
