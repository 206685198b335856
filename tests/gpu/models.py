"""A small Kimi-K2.5-shaped target and EAGLE-3 drafter, before they are trained: tokenizer, settings, texts.

    python -m tests.gpu.models FOLDER

writes ``FOLDER/kimi`` and ``FOLDER/eagle3`` (settings, tokenizer), ``FOLDER/documents.json`` (what the target has to
know by heart: the answers that the project's canary asks for, and a text to go on with for each of its prompts),
``FOLDER/prompts.json`` and ``FOLDER/long.json`` (tokens of Python sources that training leaves out). All text is this
Python's own library.
``train.py`` then makes the weights.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.gpu import sizes
from tests.gpu.rig import PROMPTS

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|media_pad|>",
    "<pad>",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_{{ m['role'] if m['role'] in ['user', 'system'] else 'assistant' }}|>{{ m['role'] }}"
    "<|im_middle|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
# The canary's questions, and what a readiness probe says.
ANSWERS = {
    "What is the capital of France? Answer with one word.": "Paris",
    "What is 17 times 23? Answer with the number.": "391",
    "Repeat this word exactly: blackwell-7391": "blackwell-7391",
    "Which day of the week comes after Wednesday? Answer with one word.": "Thursday",
    "Hello": "Hello. I am a small model that was trained on the source of Python.",
}


def main() -> None:
    """Run the command line."""
    folder = Path(sys.argv[1])
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    sources = [path for path in library if "test" not in path.parts and 500 < path.stat().st_size < 400_000]
    make(folder, sources, sizes.FULL)


def make(folder: Path, sources: list[Path], size: sizes.Size) -> None:
    """Write tokenizer, settings, documents and prompts.

    Args:
        folder: where to.
        sources: Python files to learn the tokenizer from, and to take texts from.
        size: how large the models are.
    """
    target, drafter = folder / "kimi", folder / "eagle3"
    for path in (target, drafter):
        path.mkdir(parents=True, exist_ok=True)
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in sources}
    tokenizer = learn_tokenizer([text for path, text in texts.items() if not is_held_out(path)], size)
    tokens = {name: SPECIAL_TOKENS.index(name) for name in SPECIAL_TOKENS}
    tokenizer.save(str(target / "tokenizer.json"))
    dump(target / "tokenizer_config.json", tokenizer_settings(size))
    dump(target / "config.json", sizes.target(size, tokens))
    dump(target / "generation_config.json", sizes.ends(tokens))
    dump(drafter / "config.json", sizes.drafter(size, tokens))
    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    standard = [prompt["text"] for prompt in prompts if prompt["kind"] != "long"]
    by_heart = documents(standard, prose(texts.values()))
    dump(folder / "documents.json", [tokenizer.encode(text).ids for text in by_heart])
    held_out = [tokenizer.encode(texts[path]).ids for path in sources if is_held_out(path)]
    places = [(ids, first) for first in (100, 1100) for ids in held_out if len(ids) > first + 300]
    dump(folder / "prompts.json", [ids[first : first + 160] for ids, first in places][:32])
    dump(folder / "long.json", [token for ids in held_out for token in ids][: 2 * size.window])


def dump(path: Path, data: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def is_held_out(path: Path) -> bool:
    """Whether training leaves a file out: one in 16, by its name, the same in every process."""
    return zlib.crc32(path.name.encode()) % 16 == 0


def learn_tokenizer(corpus: list[str], size: sizes.Size) -> Tokenizer:
    """A byte-level tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size.vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def tokenizer_settings(size: sizes.Size) -> dict[str, Any]:
    """``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "additional_special_tokens": SPECIAL_TOKENS[2:7],
        "model_max_length": size.window,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }


def prose(sources: Any) -> list[str]:
    """Long docstrings, of which each is mostly letters."""
    found = []
    for source in sources:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = re.sub(r"\s+", " ", ast.get_docstring(node) or "").strip()
                if len(text) > 600 and sum(letter.isalpha() for letter in text) / len(text) > 0.7:
                    found.append(text[:1500].rsplit(" ", 1)[0])
    return list(dict.fromkeys(found))


def documents(prompts: list[str], texts: list[str]) -> list[str]:
    """What the target learns by heart: the answers, and for each prompt a text, asked as a chat and in the plain."""

    def chat(question: str, answer: str) -> str:
        return (
            f"<|im_user|>user<|im_middle|>{question}<|im_end|>"
            f"<|im_assistant|>assistant<|im_middle|>{answer}<|im_end|>"
        )

    by_heart = [chat(question, answer) for question, answer in ANSWERS.items() for _ in range(3)]
    for number, prompt in enumerate(prompts):
        text = texts[number % len(texts)] if texts else prompt
        by_heart += [chat(prompt, text), f"{prompt}\n{text}<|im_end|>"]
    return by_heart


if __name__ == "__main__":
    main()
