#!/usr/bin/env python3
"""A server that speaks like SGLang 0.5.9, with a speed that is known and faults that can be switched on.

    python3 tests/stand_in/server.py --port 31000 --behaviour '{"step_s": 0.02, "stall_s": 8}'

What it sends was modelled on recorded answers of SGLang 0.5.9 with EAGLE-3: cumulative text in /generate,
several tokens a chunk, no ``usage`` in the chat stream unless asked for, keys in clear in /server_info,
counters that appear with their first event, gauges that go stale, a flush that is refused while requests run.

A request gets its first token ``ttft_s`` after it arrived and then ``accept_length`` tokens (on the mean, in
a fixed pattern) every ``step_s``. So a client must see ``accept_length / step_s`` tokens a second, whatever
the concurrency. Nothing here needs more than Python's standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any
from zlib import crc32

WORDS = ["a", "server", "is", "as", "quick", "as", "it", "was", "seen", "to", "be", "at", "noon"]
ANSWERS = {
    "capital of France": "The capital of France is Paris.",
    "17 times 23": "17 times 23 is 391.",
    "blackwell-7391": "blackwell-7391",
    "after Wednesday": "Thursday comes after Wednesday.",
}
NONSENSE = "++++ !!!! ++++ !!!!"
LOG_INTERVAL = 40


@dataclass(frozen=True)
class Behaviour:
    """How the server behaves. Times in seconds; each fault is off unless said."""

    ttft_s: float = 0.2
    step_s: float = 0.02
    accept_length: float = 3.0
    speculative: bool = True
    noise: float = 0.0  # relative standard deviation of the step time between requests
    api_key: str = ""
    admin_key: str = ""
    chars_per_token: int = 4
    tokenizer: str = "/srv/models/stand-in"
    # What it says.
    nonsense: bool = False
    empty: bool = False
    repeated: bool = False
    no_tool_call: bool = False
    wrong_answers: bool = False
    diverges_after: int = 0  # tokens after which greedy text differs from before
    dies_on_repeated_prefix: bool = False
    answers: dict[str, Any] = field(default_factory=dict)  # by path, in place of the right ones
    tool_choice: Any = None  # the choice in an answer to a request with tools, in place of the right one
    # When it says it.
    dies_on_first_post: bool = False
    breaks_off: str = ""  # the path whose answers end in the middle, with the server
    hangs_after: int = 0  # requests
    stall_s: float = 0.0  # one request of a run waits that long
    slow_long_prompts: float = 1.0  # step time of prompts beyond 4000 characters, times this
    warm_speedup: float = 1.0  # a prompt seen before gets its first token that many times sooner
    flush_lies: bool = False  # 200, and the cache stays
    fast_errors: int = 0  # every n-th request ends at once: 200 and an error in the stream
    all_fail: bool = False
    stops_early: int = 0  # every n-th request stops at half its length
    # What it counts.
    no_metrics: bool = False
    missing_counter: str = ""
    nan_counter: str = ""
    restarts: bool = False  # it is started again in each run: it counts from zero, and all else is well
    counts_chunks: bool = False  # meta_info counts chunks instead of tokens
    graphs: float = 1.0  # share of passes in CUDA graphs
    foreign_requests: int = 0  # somebody else's requests that end in each run
    foreign_tokens: int = 0  # tokens decoded in each run for somebody whose request does not end
    others_end: int = 0  # somebody else's requests that end between two looks at the metrics
    busy: bool = False


class State:
    """Counters, cache and requests of the server."""

    def __init__(self) -> None:
        self.requests = 0
        self.running = 0
        self.since_flush = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.decode_tokens = 0.0
        self.decode_passes = 0.0
        self.graph_passes = 0.0
        self.seen: dict[str, int] = {}
        # What SGLang logs as "gen throughput": tokens of decode passes over the time since the line before.
        self.logged: list[float] = []
        self.last_line = [0.0, 0.0]
        self.reset_accept_length()

    def reset_accept_length(self) -> None:
        self.interval_passes = 0.0
        self.interval = [0.0, 0.0]
        self.total = [0.0, 0.0]

    def step(self, tokens: int, graphs: float) -> None:
        """One request's share of a decode pass that yielded it ``tokens``."""
        share = 1.0 / max(1, self.running)
        self.decode_tokens += tokens
        self.decode_passes += share
        self.graph_passes += share * graphs
        self.interval[0] += tokens
        self.interval[1] += 1
        self.interval_passes += share
        if self.interval_passes >= LOG_INTERVAL - 1e-9:
            now, (tokens_then, then) = time.monotonic(), self.last_line
            self.logged.append((self.decode_tokens - tokens_then) / (now - then))
            self.last_line = [self.decode_tokens, now]
            self.total = [self.total[0] + self.interval[0], self.total[1] + self.interval[1]]
            self.interval, self.interval_passes = [0.0, 0.0], 0.0


class StandIn:
    """The server. ``behaviour`` may be replaced while it runs."""

    def __init__(self, behaviour: Behaviour | None = None, host: str = "127.0.0.1") -> None:
        self.behaviour = behaviour or Behaviour()
        self._host = host
        self.state = State()
        self.url = ""
        self._random = random.Random(1)
        self._connections: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StandIn:
        ready = threading.Event()
        serve = self.serve(self._host, 0, ready)
        self._thread = threading.Thread(target=asyncio.run, args=[serve], daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop and self._end and self._thread
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def change(self, **values: Any) -> None:
        """Switch faults on or off."""
        self.behaviour = replace(self.behaviour, **values)

    async def serve(self, host: str, port: int, ready: threading.Event | None = None) -> None:
        """Serve until the end, or until death."""
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, host, port, limit=1 << 24)
        name = server.sockets[0].getsockname()
        self.url = f"http://[{name[0]}]:{name[1]}" if ":" in name[0] else f"http://{name[0]}:{name[1]}"
        if ready:
            ready.set()
        await self._end.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _die(self) -> None:
        assert self._end
        self._end.set()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while (head := await reader.readline()).strip():
                method, target, _ = head.decode().split()
                headers = {}
                while line := (await reader.readline()).decode().strip():
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(method, target.partition("?")[0], headers, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if not self._allowed(path, headers.get("authorization", "")):
            return _send(writer, 401, {"error": "Unauthorized"})
        if path == self.behaviour.breaks_off:
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{"text": "')
            return self._die()
        if path in self.behaviour.answers:
            return _send(writer, 200, self.behaviour.answers[path])
        if path in ("/health", "/health_generate"):
            return _send(writer, 200, "")
        if path == "/metrics":
            self.state.requests += self.behaviour.others_end
            missing = self.behaviour.no_metrics
            return _send(writer, 404 if missing else 200, "" if missing else self._metrics())
        if path in ("/server_info", "/get_server_info"):
            return _send(writer, 200, self._server_info())
        if path == "/v1/models":
            return _send(writer, 200, {"object": "list", "data": [{"id": "stand-in", "object": "model"}]})
        if path == "/flush_cache":
            return self._flush(writer)
        if path == "/stand_in":
            known = {item.name for item in fields(Behaviour)}
            self.change(**{key: value for key, value in json.loads(body or b"{}").items() if key in known})
            return _send(writer, 200, asdict(self.behaviour))
        if method == "POST" and path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            return await self._complete(path, json.loads(body), writer)
        return _send(writer, 404, {"detail": "Not Found"})

    def _allowed(self, path: str, given: str) -> bool:
        if path.startswith(("/health", "/metrics", "/stand_in")):
            return True
        keys = self.behaviour
        wanted = (keys.admin_key or keys.api_key) if path == "/flush_cache" else keys.api_key
        return not wanted or given == f"Bearer {wanted}"

    def _flush(self, writer: asyncio.StreamWriter) -> None:
        if self.state.running or self.behaviour.busy:
            return _send(writer, 400, "Cache flushed.\n(When there are running requests, it will not be.)\n")
        if not self.behaviour.flush_lies:
            self.state.seen.clear()
        self.state.since_flush = 0
        self.state.reset_accept_length()
        return _send(writer, 200, "Cache flushed.\n")

    def _server_info(self) -> dict[str, Any]:
        behaviour, total = self.behaviour, self.state.total
        internal: dict[str, Any] = {
            "api_key": behaviour.api_key or None,
            "admin_api_key": behaviour.admin_key or None,
            "last_gen_throughput": 0.0,
        }
        if behaviour.speculative and total[1] and behaviour.missing_counter != "avg_spec_accept_length":
            internal["avg_spec_accept_length"] = total[0] / total[1]
        return {
            "model_path": behaviour.tokenizer,
            "tokenizer_path": behaviour.tokenizer,
            "served_model_name": "stand-in",
            "api_key": behaviour.api_key or None,
            "admin_api_key": behaviour.admin_key or None,
            "speculative_algorithm": "EAGLE3" if behaviour.speculative else None,
            "tool_call_parser": "kimi_k2",
            "internal_states": [internal],
            "version": "0.5.9",
        }

    def _metrics(self) -> str:
        state = self.state
        in_graphs = round(state.graph_passes)
        passes = round(state.decode_passes)
        samples: list[tuple[str, str, float]] = [
            ("num_requests_total", "", state.requests),
            ("prompt_tokens_total", "", state.prompt_tokens),
            ("generation_tokens_total", "", state.generated_tokens),
            ("cached_tokens_total", 'cache_source="total",', state.cached_tokens),
            ("realtime_tokens_total", 'mode="decode",', state.decode_tokens),
            ("realtime_tokens_total", 'mode="prefill_compute",', state.prompt_tokens),
            ("cuda_graph_passes_total", 'mode="decode_cuda_graph",', in_graphs),
            ("cuda_graph_passes_total", 'mode="decode_none",', passes - in_graphs),
            # Stale on purpose: the real ones keep the value of the last log interval.
            ("num_running_reqs", "", 1.0 if state.requests else 0.0),
            ("spec_accept_length", "", 0.0),
        ]
        lines = []
        for name, labels, value in samples:
            counter = name.endswith("_total")
            if (counter and value == 0) or name == self.behaviour.missing_counter:
                continue
            lines.append(f"# TYPE sglang:{name} {'counter' if counter else 'gauge'}")
            shown = "NaN" if name == self.behaviour.nan_counter else float(value)
            lines.append(f'sglang:{name}{{{labels}model_name="stand-in"}} {shown}')
        return "\n".join(lines) + "\n"

    async def _complete(self, path: str, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        behaviour, state = self.behaviour, self.state
        if behaviour.dies_on_first_post:
            return self._die()
        if behaviour.all_fail:
            return _send(writer, 500, {"error": {"message": "CUDA error: an illegal memory access"}})
        request = _Request.read(path, asked)
        state.since_flush += 1
        number = state.since_flush
        if behaviour.hangs_after and state.requests >= behaviour.hangs_after:
            await asyncio.sleep(3600)
        cached = self._cached(request.prompt)
        if cached and behaviour.dies_on_repeated_prefix:
            return self._die()
        if behaviour.fast_errors and number % behaviour.fast_errors == 0:
            return await _stream(writer, _one({"error": {"message": "KV cache pool is full"}}))
        state.running += 1
        try:
            steps = self._steps(request, number, cached)
            if request.stream:
                await _stream(writer, self._chunks(request, steps, cached))
            else:
                last = [produced async for produced in steps][-1]
                _send(writer, 200, self._whole(request, last, cached))
        finally:
            state.running -= 1

    def _cached(self, prompt: str) -> int:
        tokens = math.ceil(len(prompt) / self.behaviour.chars_per_token)
        cached = tokens if prompt in self.state.seen else 0
        self.state.seen[prompt] = tokens
        return cached

    async def _steps(self, request: _Request, number: int, cached: int) -> AsyncIterator[int]:
        """Yield the number of tokens so far, each at its time."""
        behaviour, state = self.behaviour, self.state
        clock = asyncio.get_running_loop().time
        step_s = behaviour.step_s * max(0.1, self._random.gauss(1.0, behaviour.noise))
        if len(request.prompt) > 4000:
            step_s *= behaviour.slow_long_prompts
        length = self._length(request, number)
        next_at = clock() + behaviour.ttft_s / (behaviour.warm_speedup if cached else 1.0)
        per_step = behaviour.accept_length if behaviour.speculative else 1.0
        produced, step = 1, 0
        while True:
            await asyncio.sleep(max(0.0, next_at - clock()))
            if produced >= length:
                self._count(request, length, cached, number)
            yield min(produced, length)
            if produced >= length:
                return
            step += 1
            accepted = math.floor(per_step * step) - math.floor(per_step * (step - 1))
            state.step(accepted, behaviour.graphs)
            produced += accepted
            next_at += step_s
            if behaviour.stall_s and number == 2 and step == 3:
                next_at += behaviour.stall_s

    def _length(self, request: _Request, number: int) -> int:
        behaviour = self.behaviour
        if behaviour.stops_early and number % behaviour.stops_early == 0:
            return max(2, request.max_tokens // 2)
        if request.ignore_eos:
            return request.max_tokens
        return min(request.max_tokens, len(self._words(request)))

    def _count(self, request: _Request, tokens: int, cached: int, number: int) -> None:
        state, behaviour = self.state, self.behaviour
        state.requests += 1
        state.prompt_tokens += math.ceil(len(request.prompt) / behaviour.chars_per_token)
        state.cached_tokens += cached
        state.generated_tokens += tokens
        if number == 1 and behaviour.restarts:
            state.requests = state.prompt_tokens = state.generated_tokens = 0
        if number == 1:
            state.requests += behaviour.foreign_requests
            state.generated_tokens += behaviour.foreign_requests * tokens
            state.decode_tokens += behaviour.foreign_tokens

    def _words(self, request: _Request) -> list[str]:
        behaviour = self.behaviour
        if behaviour.empty:
            return [""]
        if behaviour.repeated:
            return ["the "] * 64
        if behaviour.nonsense:
            return (NONSENSE + " ").split(" ") * 8
        answers = [answer for question, answer in ANSWERS.items() if question in request.prompt]
        if answers and not request.ignore_eos:
            return ["I ", "do ", "not ", "know."] if behaviour.wrong_answers else answers[0].split(" ")
        return WORDS

    def _text(self, request: _Request, tokens: int) -> str:
        behaviour, words = self.behaviour, self._words(request)
        said = [words[position % len(words)] for position in range(tokens)]
        if behaviour.diverges_after:
            said[behaviour.diverges_after :] = ["else"] * max(0, tokens - behaviour.diverges_after)
        return " ".join(said) if any(said) else ""

    def _meta(self, request: _Request, tokens: int, chunks: int, cached: int, done: bool) -> dict[str, Any]:
        behaviour = self.behaviour
        meta: dict[str, Any] = {
            "id": "0",
            "finish_reason": {"type": "length", "length": tokens} if done else None,
            "prompt_tokens": math.ceil(len(request.prompt) / behaviour.chars_per_token),
            "completion_tokens": chunks if behaviour.counts_chunks else tokens,
            "cached_tokens": cached,
        }
        if done and behaviour.speculative and chunks > 1:
            meta["spec_verify_ct"] = chunks - 1
            meta["spec_accept_length"] = tokens / (chunks - 1)
        return meta

    async def _chunks(
        self, request: _Request, steps: AsyncIterator[int], cached: int
    ) -> AsyncIterator[dict[str, Any]]:
        chunks, before = 0, 0
        async for tokens in steps:
            chunks += 1
            if request.native:
                length = self.behaviour.counts_chunks and request.max_tokens
                done = tokens >= (length or request.max_tokens)
                yield {
                    "text": self._text(request, tokens),
                    "output_ids": list(range(tokens)),
                    "meta_info": self._meta(request, tokens, chunks, cached, done),
                }
            else:
                text = self._text(request, tokens)[len(self._text(request, before)) :]
                delta = {"delta": {"role": None, "content": text}} if request.chat else {"text": text}
                choice: dict[str, Any] = {"index": 0, **delta, "logprobs": None, "finish_reason": None}
                yield {**request.envelope(chunk=True), "choices": [choice], "usage": None}
            before = tokens
        if not request.native:
            end: dict[str, Any] = {"delta": {"role": None, "content": None}} if request.chat else {"text": ""}
            choice = {"index": 0, **end, "logprobs": None, "finish_reason": "length"}
            yield {**request.envelope(chunk=True), "choices": [choice], "usage": None}
        if request.usage:
            yield {**request.envelope(chunk=True), "choices": [], "usage": self._usage(request, before)}

    def _whole(self, request: _Request, tokens: int, cached: int) -> dict[str, Any]:
        text = self._text(request, tokens)
        if request.native:
            return {
                "text": text,
                "output_ids": [crc32(word.encode()) % 1000 for word in text.split()],
                "meta_info": self._meta(request, tokens, tokens, cached, True),
            }
        choice: Any = {"index": 0, "finish_reason": "stop"}
        if not request.chat:
            choice["text"] = text
        elif request.tools and not self.behaviour.no_tool_call:
            function = {"name": request.tools[0]["function"]["name"], "arguments": '{"city": "Riga"}'}
            call = {"id": "functions.0", "index": 0, "type": "function", "function": function}
            choice |= {"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [call]}}
            choice = self.behaviour.tool_choice or choice
        else:
            choice["message"] = {"content": text, "reasoning_content": None, "tool_calls": None}
        return {**request.envelope(chunk=False), "choices": [choice], "usage": self._usage(request, tokens)}

    def _usage(self, request: _Request, tokens: int) -> dict[str, int]:
        prompt = math.ceil(len(request.prompt) / self.behaviour.chars_per_token)
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


@dataclass(frozen=True)
class _Request:
    native: bool
    chat: bool
    prompt: str
    max_tokens: int
    ignore_eos: bool
    stream: bool
    usage: bool
    tools: list[dict[str, Any]]

    @classmethod
    def read(cls, path: str, asked: dict[str, Any]) -> _Request:
        native, chat = path == "/generate", path.endswith("/chat/completions")
        sampling = asked.get("sampling_params", {}) if native else asked
        if chat:
            prompt = "\n".join(str(message.get("content")) for message in asked["messages"])
        else:
            prompt = str(asked.get("text", "") if native else asked["prompt"])
        length = sampling.get("max_new_tokens") or sampling.get("max_completion_tokens")
        return cls(
            native=native,
            chat=chat,
            prompt=prompt,
            max_tokens=int(length or sampling.get("max_tokens") or 128),
            ignore_eos=bool(sampling.get("ignore_eos")),
            stream=bool(asked.get("stream")),
            usage=bool((asked.get("stream_options") or {}).get("include_usage")),
            tools=asked.get("tools") or [],
        )

    def envelope(self, *, chunk: bool) -> dict[str, Any]:
        """What all answers of the OpenAI interface begin with."""
        kind = f"chat.completion{'.chunk' if chunk else ''}" if self.chat else "text_completion"
        return {"id": "0", "object": kind, "created": 0, "model": "stand-in"}


async def _one(item: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield item


def _send(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    kind = "text/plain" if isinstance(body, str) else "application/json"
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


async def _stream(writer: asyncio.StreamWriter, items: AsyncIterator[dict[str, Any]]) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    async for item in items:
        _chunk(writer, f"data: {json.dumps(item)}\n\n")
        await writer.drain()
    _chunk(writer, "data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--behaviour", type=json.loads, default={}, help="fields of Behaviour, as JSON")
    arguments = parser.parse_args()

    server = StandIn(Behaviour(**arguments.behaviour))
    asyncio.run(server.serve(arguments.host, arguments.port))


if __name__ == "__main__":
    main()
