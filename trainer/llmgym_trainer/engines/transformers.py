"""The embedded sampling engine: a transformers model in this process.

Works in rounds. Every request that is ready joins a round; the round decodes until each of its rows stops, and
finished rows leave the batch. The keys and values of an episode are kept between its turns, so that a turn costs
only its new tokens, and equal prompts of one group are read once. A weight update drops all kept state.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from llmgym._util.aio import run_in_daemon_thread
from llmgym_trainer.engines.base import MAX_BATCH, MAX_PREFILL_TOKENS, Sample, SamplingParams

_QUIET_S = 0.002
"""A round waits until no request has come for this long …"""
_STRAGGLER_S = 0.02
"""… or for this long when episodes are still inside their environments."""
_GROWTH_SLOTS = 64
_COMPACT_BELOW = 0.75


@dataclass(eq=False)
class _Request:
    prompt_ids: list[int]
    params: SamplingParams
    key: str
    rng: random.Random
    future: asyncio.Future[Sample]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    aborted: bool = False

    def add(self, token_id: int, logprob: float) -> None:
        self.ids.append(token_id)
        self.logprobs.append(logprob)
        if token_id in self.params.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.ids) >= self.params.max_new_tokens:
            self.finish_reason = "length"

    @property
    def done(self) -> bool:
        return self.aborted or bool(self.finish_reason)


@dataclass
class _Kept:
    """Keys and values of an episode so far: one (heads, len(ids), head_dim) pair a layer."""

    ids: list[int]
    layers: list[tuple[torch.Tensor, torch.Tensor]]


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # no type information
    """One layer's keys and values (batch, heads, slots, head_dim) in a buffer that grows by whole blocks.

    transformers' own dynamic layer copies everything for each new token; this one copies once in
    ``_GROWTH_SLOTS`` tokens.
    """

    is_sliding = False

    def __init__(self, keys: torch.Tensor | None = None, values: torch.Tensor | None = None) -> None:
        super().__init__()
        self.used = 0
        if keys is not None and values is not None:
            self.keys, self.values, self.used = keys, values, keys.shape[-2]
            self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_empty((*key_states.shape[:-2], 0, key_states.shape[-1]))
        self.values = value_states.new_empty((*value_states.shape[:-2], 0, value_states.shape[-1]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        end = self.used + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            shape = (*key_states.shape[:-2], end - self.used + _GROWTH_SLOTS, key_states.shape[-1])
            self.keys = torch.cat([self.keys[..., : self.used, :], key_states.new_empty(shape)], dim=-2)
            shape = (*shape[:-1], value_states.shape[-1])
            self.values = torch.cat([self.values[..., : self.used, :], value_states.new_empty(shape)], dim=-2)
        self.keys[..., self.used : end, :] = key_states
        self.values[..., self.used : end, :] = value_states
        self.used = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        return self.used

    def get_max_length(self) -> int:
        return -1

    def select(self, rows: torch.Tensor) -> None:
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = self.keys[rows], self.values[rows]


class TransformersEngine:
    """Samples with a transformers causal language model on its own device.

    Args:
        model: The model that is being trained; sampled from in evaluation mode, without gradients.
        max_batch: Rows decoded together; more requests wait for the next round.
        max_prefill_tokens: Prompt tokens (padding included) in one forward pass.
        max_kept_tokens: Episodes beyond this many kept tokens are read again at each turn. None keeps all.
        forward_context: Entered around each forward pass, such as the trainer's autocast.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        max_batch: int = MAX_BATCH,
        max_prefill_tokens: int = MAX_PREFILL_TOKENS,
        max_kept_tokens: int | None = None,
        forward_context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._model: Any = model
        self._max_batch = max_batch
        self._max_prefill_tokens = max_prefill_tokens
        self._max_kept_tokens = max_kept_tokens
        self._forward_context = forward_context
        config = self._model.config.get_text_config()
        layer_types = getattr(config, "layer_types", None)
        if layer_types is None:  # such as Mistral, whose window covers every layer
            layer_types = ["full_attention" if getattr(config, "sliding_window", None) is None else "sliding_attention"]
        self._keeps = all(kind == "full_attention" for kind in layer_types)
        self._num_layers = config.num_hidden_layers
        self._max_positions = getattr(config, "max_position_embeddings", None)
        self._version = 0
        self._kept: dict[str, _Kept] = {}
        self._live: set[str] = set()
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._dispatcher: asyncio.Task[None] | None = None

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        """See :meth:`llmgym_trainer.engines.base.Engine.sample`."""
        if not prompt_ids:
            raise ValueError("prompt_ids is empty; a prompt has at least one token")
        if self._max_positions is not None and len(prompt_ids) + params.max_new_tokens > self._max_positions:
            raise ValueError(
                f"{len(prompt_ids)} prompt tokens + max_new_tokens={params.max_new_tokens} exceed the model's "
                f"{self._max_positions} positions; lower max_model_length"
            )
        request = _Request(prompt_ids, params, key, rng, asyncio.get_running_loop().create_future())
        self._live.add(key)
        self._waiting.append(request)
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())
        try:
            return await request.future
        except asyncio.CancelledError:
            request.aborted = True
            raise

    def release(self, key: str) -> None:
        """See :meth:`llmgym_trainer.engines.base.Engine.release`."""
        self._live.discard(key)
        self._kept.pop(key, None)

    def abort(self, key: str) -> None:
        """See :meth:`llmgym_trainer.engines.base.Engine.abort`."""
        for request in [*self._waiting, *self._running]:
            if request.key == key:
                request.aborted = True
                request.future.cancel()

    def sync(self, version: int) -> None:
        """See :meth:`llmgym_trainer.engines.base.Engine.sync`. The weights are the model's own; kept state goes."""
        self._version = version
        self._kept.clear()

    def close(self) -> None:
        """Abort what is under way and drop the kept state."""
        for request in [*self._waiting, *self._running]:
            request.aborted = True
            with contextlib.suppress(RuntimeError):  # its event loop has closed: nobody waits any more
                request.future.get_loop().call_soon_threadsafe(request.future.cancel)
        self._kept.clear()
        self._live.clear()

    async def _dispatch(self) -> None:
        while self._waiting:
            await self._settle()
            self._waiting = [request for request in self._waiting if not request.aborted]
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            if not batch:
                return
            self._running = batch
            try:
                await run_in_daemon_thread(functools.partial(self._run_round, batch))
            except Exception as error:  # noqa: BLE001 - each waiting episode gets it as its own error
                for request in batch:
                    if not request.future.done():
                        request.future.set_exception(error)
            finally:
                self._running = []
            for request in batch:
                if not request.future.done():
                    request.future.set_result(
                        Sample(request.ids, request.logprobs, request.finish_reason, self._version)
                    )

    async def _settle(self) -> None:
        """Wait until the episodes that are about to ask have asked."""
        quiet_s, count = 0.0, -1
        while quiet_s < _QUIET_S or (len(self._waiting) < len(self._live) and quiet_s < _STRAGGLER_S):
            if len(self._waiting) != count:
                quiet_s, count = 0.0, len(self._waiting)
            await asyncio.sleep(_QUIET_S / 2)
            quiet_s += _QUIET_S / 2

    @contextlib.contextmanager
    def _sampling_mode(self) -> Iterator[None]:
        was_training = self._model.training
        if was_training:
            self._model.eval()
        try:
            with torch.no_grad(), self._forward_context():
                yield
        finally:
            if was_training:
                self._model.train()

    def _run_round(self, batch: Sequence[_Request]) -> None:
        with self._sampling_mode():
            if self._keeps:
                self._read_missing(batch)
            self._decode(list(batch))

    def _read_missing(self, batch: Sequence[_Request]) -> None:
        """Read the prompts nothing is kept of, all but their last token, equal ones once."""
        missing: dict[tuple[int, ...], list[str]] = {}
        for request in batch:
            kept = self._kept.get(request.key)
            fits = kept is not None and request.prompt_ids[: len(kept.ids)] == kept.ids
            if kept is not None and (not fits or len(kept.ids) >= len(request.prompt_ids)):
                del self._kept[request.key]
                kept = None
            if kept is None and len(request.prompt_ids) > 1:
                missing.setdefault(tuple(request.prompt_ids[:-1]), []).append(request.key)
        prompts = sorted(missing, key=len)
        while prompts:
            take = 1
            while take < len(prompts) and (take + 1) * len(prompts[take]) <= self._max_prefill_tokens:
                take += 1
            chunk, prompts = prompts[:take], prompts[take:]
            cache = Cache(layers=[_SlotLayer() for _ in range(self._num_layers)])
            mask = self._forward(cache, None, [list(prompt) for prompt in chunk])[1]
            for row, prompt in enumerate(chunk):
                kept = self._extract(cache, mask, row, list(prompt))
                for key in missing[prompt]:
                    self._kept[key] = kept

    def _decode(self, rows: list[_Request]) -> None:
        """Decode one round. All rows share a slot-wise aligned cache: [padded past | padded new | sampled …]."""
        device = self._model.device
        if self._keeps:
            cache, mask = self._assemble(rows)
            known = [len(self._kept[r.key].ids) if r.key in self._kept else 0 for r in rows]
        else:
            cache, mask, known = DynamicCache(config=self._model.config), None, [0] * len(rows)
        logits, mask = self._forward(cache, mask, [r.prompt_ids[n:] for r, n in zip(rows, known, strict=True)], known)
        while True:
            tokens, logprobs = self._draw(logits, rows)
            for request, token, logprob in zip(rows, tokens, logprobs, strict=True):
                if not request.done:
                    request.add(token, logprob)
                    if request.finish_reason == "stop" and self._keeps:
                        self._keep(cache, mask, rows, request)
            active = [index for index, request in enumerate(rows) if not request.done]
            if not active:
                return
            if self._keeps and len(active) < _COMPACT_BELOW * len(rows):
                index = torch.tensor(active, device=device)
                for layer in cache.layers:
                    layer.select(index)
                mask = mask[index]
                rows = [rows[i] for i in active]
            last = [request.ids[-1:] or request.prompt_ids[-1:] for request in rows]  # an aborted one may have none
            positions = [len(request.prompt_ids) + len(request.ids) - 1 for request in rows]
            logits, mask = self._forward(cache, mask, last, positions)

    def _assemble(self, rows: Sequence[_Request]) -> tuple[Any, torch.Tensor | None]:
        """Lay the kept state of all rows side by side, padded on the left."""
        kept = [self._kept.get(request.key) for request in rows]
        longest = max((len(k.ids) for k in kept if k is not None), default=0)
        if longest == 0:
            return Cache(layers=[_SlotLayer() for _ in range(self._num_layers)]), None
        some = next(k for k in kept if k is not None)
        mask = torch.zeros(len(rows), longest, dtype=torch.long, device=self._model.device)
        layers = []
        for number in range(self._num_layers):
            pair = []
            for half in (0, 1):
                like = some.layers[number][half]
                buffer = like.new_zeros(len(rows), like.shape[0], longest, like.shape[-1])
                for row, k in enumerate(kept):
                    if k is not None:
                        buffer[row, :, longest - len(k.ids) :] = k.layers[number][half]
                pair.append(buffer)
            layers.append(_SlotLayer(*pair))
        for row, k in enumerate(kept):
            if k is not None:
                mask[row, longest - len(k.ids) :] = 1
        return Cache(layers=layers), mask

    def _forward(
        self,
        cache: Any,
        past_mask: torch.Tensor | None,
        new: Sequence[list[int]],
        positions: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run new tokens, padded on the left, and return the last logits (B, V) in fp32 and the grown slot mask."""
        device, width = self._model.device, max(map(len, new))
        ids = torch.zeros(len(new), width, dtype=torch.long)
        new_mask = torch.zeros(len(new), width, dtype=torch.long)
        position_ids = torch.zeros(len(new), width, dtype=torch.long)
        for row, tokens in enumerate(new):
            begin, first = width - len(tokens), positions[row] if positions is not None else 0
            ids[row, begin:] = torch.tensor(tokens)
            new_mask[row, begin:] = 1
            position_ids[row, begin:] = torch.arange(first, first + len(tokens))
        new_mask = new_mask.to(device)
        mask = new_mask if past_mask is None else torch.cat([past_mask, new_mask], dim=1)
        output = self._model(
            input_ids=ids.to(device),
            attention_mask=mask,
            position_ids=position_ids.to(device),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float(), mask

    def _draw(self, logits: torch.Tensor, rows: Sequence[_Request]) -> tuple[list[int], list[float]]:
        """Draw one token a row by inverting its cumulative distribution at the row's own random number."""
        temperatures = torch.tensor([r.params.temperature for r in rows], device=logits.device).unsqueeze(1)
        greedy = temperatures == 0
        logp = torch.log_softmax(logits / torch.where(greedy, 1.0, temperatures), dim=-1)
        uniform = torch.tensor(
            [0.0 if r.done else r.rng.random() for r in rows], dtype=torch.float64, device=logits.device
        ).unsqueeze(1)
        cumulative = logp.double().exp().cumsum(dim=-1)
        drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
        drawn = torch.where(greedy, logp.argmax(dim=-1, keepdim=True), drawn.clamp(max=logits.shape[-1] - 1))
        return drawn.squeeze(1).tolist(), logp.gather(1, drawn).squeeze(1).tolist()

    def _keep(self, cache: Any, mask: torch.Tensor, rows: Sequence[_Request], request: _Request) -> None:
        if request.key not in self._live:
            return
        held = [*request.prompt_ids, *request.ids[:-1]]  # the last token was sampled but not read
        budget = self._max_kept_tokens
        if budget is not None and len(held) + sum(len(k.ids) for k in self._kept.values()) > budget:
            self._kept.pop(request.key, None)
            return
        self._kept[request.key] = self._extract(cache, mask, rows.index(request), held)

    @staticmethod
    def _extract(cache: Any, mask: torch.Tensor, row: int, ids: list[int]) -> _Kept:
        slots = mask[row].nonzero().squeeze(1)
        return _Kept(ids, [(layer.keys[row][:, slots], layer.values[row][:, slots]) for layer in cache.layers])
