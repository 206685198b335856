"""Steps about the drafter: that stock SGLang fails, accept length by patches and requests at once, long contexts."""

from __future__ import annotations

import gzip
import json
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from . import judged
from .rig import HOST_PYTHON, Play, Rig, image, patch_default, patch_ids, query
from .runner import Failed, NotRun
from .servers import SPEC_V1, SPEC_V2, Server, ask, read_json, speculative

AT_ONCE = (1, 2, 4, 8)
PROMPTS, TOKENS = 24, 128
# Accept length hardly depends on the number of requests; this much is noise of 24 prompts.
NOISE = 0.05
SMALL = [
    "--max-total-tokens",
    "65536",
    "--max-running-requests",
    "16",
    "--cuda-graph-max-bs",
    "8",
    "--context-length",
    "8192",
]
# A graph's buffers follow the window; accept lengths need no long one.
NO_CACHE = [*SMALL, "--disable-radix-cache"]


def drafting_patches(rig: Rig) -> list[str]:
    """The patches of the drafter's pass over its draft tokens, which only speculation in its version 2 has."""
    return [name for name in patch_ids(rig.project)["guard"] if name.startswith("eagle3-draft-extend")]


def require_card() -> None:
    """Fail early.

    Raises:
        NotRun: there is no card.
    """
    query("name")


def train(rig: Rig) -> dict[str, Any]:
    """Start to make the models, in the background, and return at once; :func:`trained` waits."""
    require_card()
    if (rig.models / "ready").exists() or (rig.work / "training.pid").exists():
        return {"training": "done, or begun"}
    rig.models.mkdir(parents=True, exist_ok=True)
    interpreter = str(rig.make_tree("stock"))
    folders = [str(image()), str(Path(json.__file__).parents[1])]
    seconds = [str(each) for each in rig.seconds]
    script = 'python=$1; shift; "$python" -m tests.gpu.models "$1" && "$python" -m tests.gpu.train "$@"'
    script += ' && touch "$1/ready"'
    with (rig.logs / "training.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, "-", interpreter, str(rig.models), *seconds, *folders],
            cwd=rig.project, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    (rig.work / "training.pid").write_text(f"{process.pid}\n", encoding="utf-8")
    # The settings and the tokenizer are made first, and are all that other steps need meanwhile.
    while not (rig.models / "long.json").exists():
        if process.poll() is not None:
            raise Failed("the models were not made", {"log": tail(rig.logs / "training.log")})
        time.sleep(0.5)
    return {"seconds of training": sum(rig.seconds)}


def trained(rig: Rig) -> dict[str, Any]:
    """Wait until both models are trained."""
    process = int((rig.work / "training.pid").read_text(encoding="utf-8"))
    while not (rig.models / "ready").exists():
        if not alive(process):
            raise Failed("training ended without models", {"log": tail(rig.logs / "training.log")})
        time.sleep(0.5)
    return {"log": tail(rig.logs / "training.log", 6)}


def alive(process: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a file."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def stock_fails(rig: Rig) -> dict[str, Any]:
    """Stock SGLang cannot speculate with Kimi-K2.5, and says which method is missing."""
    require_card()
    rig.make_tree("stock")
    arguments = [*NO_CACHE, *speculative(rig), "--load-format", "dummy"]
    server = Server(rig, "stock", "stock", 30000, arguments, SPEC_V2)
    try:
        seconds = server.wait(240)
        if seconds is not None:
            raise Failed("stock SGLang serves Kimi-K2.5 with EAGLE-3", {"seconds": seconds})
        took = time.monotonic() - server.started
        said = server.errors(6)
    finally:
        server.stop()
    if "has no attribute 'set_eagle3_layers_to_capture'" not in server.text():
        raise Failed("stock SGLang fails, but not for the method that it lacks", {"said": said})
    return {"seconds": round(took, 1), "said": said.splitlines()[-1][-200:]}


def repatch(rig: Rig) -> dict[str, Any]:
    """Status, apply, apply again and revert with the project's playbook; reverted files are the wheels' to the byte."""
    rig.make_tree("patching")
    before = rig.changed_files("patching")
    rows = []
    for number, mode in enumerate(("status", "apply", "apply", "revert")):
        play = patch(rig, "patching", mode, log=f"repatch-{number}-{mode}")
        rows.append(
            {"what": mode, "changed": play.counts().get("changed"), "files": rig.changed_files("patching")}
        )
    figures = {"files that differ at the beginning": before, "runs": rows}
    if before or not rows[1]["files"]:
        raise Failed("applying changed nothing, or the tree was not the published one", figures)
    if rows[2]["changed"] != 0 or rows[2]["files"] != rows[1]["files"]:
        raise Failed("applying a second time changed something", figures)
    if rows[3]["files"]:
        raise Failed("reverted files are not the published ones", figures)
    return figures


def patch(
    rig: Rig,
    tree: str,
    mode: str = "apply",
    *,
    off: Iterable[str] = (),
    on: Iterable[str] = (),
    log: str = "",
) -> Play:
    """Run playbooks/repatch.yml on a tree, with some patches switched off, and others on."""
    kinds, left_out, put_in = patch_ids(rig.project), set(off), set(on)

    def is_on(name: str) -> bool:
        return name not in left_out and (name in put_in or patch_default(rig.project, name))

    enabled = {
        variable: {name: is_on(name) for name in kinds.get(kind, [])}
        for variable, kind in (("model_patches_enabled", "model"), ("sm120_guards_enabled", "guard"))
    }
    rig.make_tree(tree)
    given = {
        "ansible_python_interpreter": HOST_PYTHON,
        "sglang_python": str(rig.tree(tree)),
        "patch_mode": mode,
        "patch_reports": str(rig.logs / f"patches-{tree}"),
        # The inventory check refuses spec v2 without its patches, and nothing is deployed here.
        "eagle3_server_enable_spec_v2": not left_out,
        **enabled,
    }
    arguments = ["--inventory", "localhost,", "--connection", "local", "--extra-vars", json.dumps(given)]
    return rig.play(log or f"repatch-{tree}", "playbooks/repatch.yml", *arguments).require_success()


def make_trees(rig: Rig) -> dict[str, Any]:
    """Environments by patch set, patched by the project's playbook."""
    guards, drafting = patch_ids(rig.project)["guard"], drafting_patches(rig)
    sets = {"whole": [], "delegation": guards, "undrafted": drafting, "first": drafting[:0]}
    if len(drafting) > 1:
        # One of them alone shows what the other adds.
        sets["first"] = [name for name in drafting if name != "eagle3-draft-extend-v2"]
    else:
        del sets["first"]
    for name, off in sets.items():
        patch(rig, name, off=off)
    return {"environments": [{"name": name, "files": rig.changed_files(name)} for name in sets]}


@contextmanager
def serving(servers: Sequence[Server]) -> Any:
    """Stop all of them in the end."""
    try:
        yield
    finally:
        for server in servers:
            server.stop(0)


def accept_lengths(rig: Rig) -> dict[str, Any]:
    """Accept length by patches, version of speculation, graphs, and requests at once."""
    prompts = read_json(rig.models / "prompts.json")[:PROMPTS]
    arguments = [*NO_CACHE, *speculative(rig)]
    eager = [*arguments, "--disable-cuda-graph"]
    wanted: list[tuple[str, str, list[str], Mapping[str, str], int]] = [
        ("v2, without the drafting patches", "undrafted", arguments, SPEC_V2, 5),
        ("v2, all patches", "whole", arguments, SPEC_V2, 5),
        ("v2, all patches, no graphs", "whole", eager, SPEC_V2, 1),
        ("v1, all patches", "whole", arguments, SPEC_V1, 2),
        ("v1, delegation only", "delegation", arguments, SPEC_V1, 1),
        ("no speculation", "whole", NO_CACHE, {}, 1),
    ]
    if (rig.work / "trees" / "first").exists():
        wanted.insert(1, ("v2, eagle3-draft-extend-v2 without the others", "first", arguments, SPEC_V2, 1))
    names = [f"accept-{number}" for number in range(len(wanted))]
    servers = [
        Server(rig, name, tree, 30100 + 20 * number, given, variables)
        for number, (name, (_title, tree, given, variables, _rounds)) in enumerate(zip(names, wanted))
    ]
    rows: list[dict[str, Any]] = []
    samples: dict[str, Any] = {}
    with serving(servers):
        for server, (title, _tree, _given, _variables, rounds) in zip(servers, wanted):
            if server.wait(280) is None:
                rows.append({"server": title, "failed": server.errors(4)})
                continue
            server.draft(prompts[:2], 16, 2)
            seen = {
                at_once: [server.draft(prompts, TOKENS, at_once) for _ in range(rounds)]
                for at_once in AT_ONCE
            }
            samples[title] = seen
            rows.append({"server": title, **row_of(seen)})
            # What was seen stays, whatever becomes of the next one.
            (rig.logs / "accept-lengths.json").write_text(json.dumps(samples), encoding="utf-8")
            # An idle scheduler takes a core, which the next one may need.
            server.stop(0)
    compare_texts(rows, samples)
    figures: dict[str, Any] = {
        "accept length, and tok/s of all requests together": rows,
        "prompts": len(prompts),
    }
    bad = [row["server"] for row in rows if "failed" in row]
    if bad:
        raise Failed(f"no answer from: {', '.join(bad)}", figures)
    whole = samples["v2, all patches"]
    figures["spread of v2 with all patches"] = spread(whole)
    references = ("v2, all patches, no graphs", "v1, all patches")
    for title in references:
        figures[f"v2 with all patches against {title}"] = worst(whole, samples[title])
    if figures["spread of v2 with all patches"] > NOISE:
        raise Failed("with all patches accept length still falls with the number of requests", figures)
    if max(abs(figures[f"v2 with all patches against {title}"]) for title in references) > NOISE:
        raise Failed("v2 with all patches accepts otherwise than without graphs, or than v1", figures)
    return figures


def compare_texts(rows: Sequence[dict[str, Any]], samples: Mapping[str, Any]) -> None:
    """Add to each row how many answers are those without speculation, to the token."""
    plain = samples.get("no speculation")
    for row in rows:
        if plain and row["server"] in samples:
            pairs = zip(samples[row["server"]][1][0]["outputs"], plain[1][0]["outputs"])
            row["same text at 1"] = sum(one == other for one, other in pairs)


def middle(samples: Sequence[Mapping[str, Any]], figure: str) -> float | None:
    """The median of a figure over rounds; None where there is none."""
    values = [sample[figure] for sample in samples if sample[figure] is not None]
    return median(values) if values else None


def row_of(seen: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """A row of the table: for each number of requests at once the accept length, and tok/s."""
    row: dict[str, Any] = {}
    for at_once, samples in seen.items():
        length = middle(samples, "accept_length")
        row[f"at {at_once}"] = "-" if length is None else round(length, 3)
    for at_once in (min(seen), max(seen)):
        speeds = [sample["tokens"] / sample["seconds"] for sample in seen[at_once]]
        row[f"tok/s at {at_once}"] = round(median(speeds))
    return row


def spread(seen: Mapping[int, Sequence[Mapping[str, Any]]]) -> float:
    """Of accept lengths over the numbers of requests at once: largest over smallest, less 1."""
    lengths = [
        length for samples in seen.values() if (length := middle(samples, "accept_length")) is not None
    ]
    return round(max(lengths) / min(lengths) - 1, 4) if lengths else 0.0


def worst(seen: Mapping[int, Any], reference: Mapping[int, Any]) -> float:
    """The largest difference of accept lengths at one number of requests at once, as a share of the reference."""
    changes = [
        float(one / other - 1)
        for at_once in seen
        if (one := middle(seen[at_once], "accept_length"))
        and (other := middle(reference[at_once], "accept_length"))
    ]
    largest = max(max(changes), -min(changes)) if changes else 0.0
    return round(largest if largest in changes else -largest, 4)


def judge(rig: Rig) -> dict[str, Any]:
    """The project's judge fails what was measured without the drafting patches, by name, and passes it with them."""
    samples = read_json(rig.logs / "accept-lengths.json")
    without = judged.verdict(samples["v2, without the drafting patches"])
    whole = judged.verdict(samples["v2, all patches"])
    figures = {"without the drafting patches": without.headline, "all patches": whole.headline}
    named = [culprit for culprit in without.culprits if "more requests" in culprit.name]
    if without.outcome != "fail" or not named:
        raise Failed("the judge does not fail a drafter that guesses worse with more requests", figures)
    if whole.outcome != "pass":
        raise Failed("the judge does not pass the patched server", figures)
    return figures


LENGTHS = (512, 2048, 6144, 12288)


def long_contexts(rig: Rig) -> dict[str, Any]:
    """What a step costs by length of context: KV splits, the drafter's back end and steps, and kernels by name."""
    text = read_json(rig.models / "long.json")
    if len(text) < max(LENGTHS) + 64:
        raise NotRun(f"there are {len(text)} tokens of text")
    room = ["--max-total-tokens", "131072", "--max-running-requests", "4", "--cuda-graph-max-bs", "4"]
    room += ["--context-length", "16384"]

    def splits(number: int) -> list[str]:
        return ["--triton-attention-num-kv-splits", str(number)]

    drafter = speculative(rig)
    wanted: list[tuple[str, list[str]]] = [
        ("no speculation, 8 KV splits", [*splits(8)]),
        ("no speculation, 32 KV splits", [*splits(32)]),
        ("EAGLE-3, 8 KV splits", [*drafter, *splits(8)]),
        ("EAGLE-3, 16 KV splits", [*drafter, *splits(16)]),
        ("EAGLE-3, 32 KV splits", [*drafter, *splits(32)]),
        ("EAGLE-3, 1 draft step", [*speculative(rig, 1), *splits(8)]),
        (
            "EAGLE-3, drafter on flashinfer",
            [*drafter, *splits(8), "--speculative-draft-attention-backend", "flashinfer"],
        ),
    ]
    servers = [
        Server(rig, f"long-{number}", "whole", 30400 + 20 * number, [*room, *given], SPEC_V2)
        for number, (_title, given) in enumerate(wanted)
    ]
    rows, kernels = [], []
    with serving(servers):
        for server, (title, _given) in zip(servers, wanted):
            if server.wait(280) is None:
                rows.append({"server": title, "failed": server.errors(2)[-200:]})
                continue
            row: dict[str, Any] = {"server": title}
            for length in LENGTHS:
                row[f"{length}, ms a step"] = step_time(server, text[:length])
            rows.append(row)
            (rig.logs / "long-contexts.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
            if title in ("EAGLE-3, 8 KV splits", "no speculation, 8 KV splits"):
                for length in (LENGTHS[0], LENGTHS[-2]):
                    kernels += [
                        {"server": title, "context": length, **each}
                        for each in profile(rig, server, text[:length])
                    ]
            server.stop(0)
    return {"time of a step": rows, "kernels, by time": kernels}


def step_time(server: Server, context: Sequence[int]) -> float | None:
    """Milliseconds of a step with one request; a step verifies drafts, or makes one token."""
    server.generate(context, 4)  # The context is in the cache of prefixes from now on.
    times = []
    for _ in range(3):
        one, many = server.generate(context, 1), server.generate(context, 65)
        steps = [answer["meta_info"].get("spec_verify_ct") for answer in (one, many)]
        count = steps[1] - (steps[0] or 0) if steps[1] else 64
        times.append(1000 * (many["seconds"] - one["seconds"]) / count)
    return float(round(median(times), 2))


def profile(rig: Rig, server: Server, context: Sequence[int], most: int = 8) -> list[dict[str, Any]]:
    """The kernels that take the most time while tokens are made, told apart by their grids as well."""
    folder = rig.logs / f"profile-{server.name}-{len(context)}"
    server.generate(context, 4)
    ask(server.url + "/start_profile", {"output_dir": str(folder), "activities": ["CPU", "GPU"]})
    answer = server.generate(context, 65)
    ask(server.url + "/stop_profile", {}, timeout=120)
    deadline = time.monotonic() + 30
    while not (traces := sorted(folder.glob("*.trace.json.gz"))) and time.monotonic() < deadline:
        time.sleep(0.5)
    if not traces:
        return [{"kernel": "no trace was written"}]
    steps = answer["meta_info"].get("spec_verify_ct") or 64
    return heaviest(traces[0], steps, most)


def heaviest(trace: Path, steps: int, most: int) -> list[dict[str, Any]]:
    """The kernels of a trace that take the most time, in microseconds and calls a step."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    sums: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.get("cat") == "kernel":
            key = (event["name"][:60], "x".join(str(size) for size in event.get("args", {}).get("grid", [])))
            sums.setdefault(key, []).append(float(event["dur"]))
    total = sum(sum(times) for times in sums.values())
    rows = [
        {
            "kernel": name,
            "grid": grid,
            "us a step": round(sum(times) / steps, 1),
            "calls a step": round(len(times) / steps, 2),
            "share": round(sum(times) / total, 3),
        }
        for (name, grid), times in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(str(row["us a step"])))[:most]


FUSION = ("flashinfer-allreduce-guard", "flashinfer-trtllm-comm-sm120")


def tensor_parallel(rig: Rig) -> dict[str, Any]:
    """Two cards: the states that the drafter reads are whole under the fused allreduce, as accept length shows."""
    cards = query("index")
    if len(cards) < 2:
        raise NotRun("there is one card, and tensor parallel takes two")
    patch(rig, "fused", on=FUSION)
    patch(rig, "fused-partial", on=FUSION, off=["eagle3-aux-after-allreduce"])
    prompts = read_json(rig.models / "prompts.json")[:PROMPTS]
    arguments = [*NO_CACHE, *speculative(rig)]
    two = [*arguments, "--tp-size", "2", "--enable-flashinfer-allreduce-fusion"]
    rows, lengths = [], {}
    for number, (title, tree, given, which) in enumerate(
        [
            ("one card", "fused", arguments, "0"),
            ("two cards, fused", "fused", two, "0,1"),
            ("two cards, fused, without the patch", "fused-partial", two, "0,1"),
        ]
    ):
        server = Server(rig, f"parallel-{number}", tree, 30700 + 20 * number, given, SPEC_V2, which)
        with serving([server]):
            server.require(500)
            seen = {at_once: [server.draft(prompts, TOKENS, at_once)] for at_once in (1, 8)}
        rows.append({"server": title, **row_of(seen)})
        lengths[title] = seen
    difference = worst(lengths["two cards, fused"], lengths["one card"])
    figures = {"accept length": rows, "two cards against one": difference}
    if abs(difference) > NOISE:
        raise Failed("on two cards the drafter accepts otherwise than on one", figures)
    return figures
