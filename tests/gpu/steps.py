"""The steps, in their order."""

from __future__ import annotations

from functools import partial

from . import counts, drafting, rollout
from .rig import Rig
from .runner import Step

# A tiny model is as noisy as the host that launches its kernels: the usual margins would decide by chance.
WIDE = '{"throughput_check_margin": 0.3, "throughput_check_ttft_margin": 0.6}'


def steps(rig: Rig) -> list[Step]:
    """All steps: what matters most comes first, and what needs no models runs while they are trained."""
    host = rollout.Host(rig)
    drafted = ("trees", "trained")
    deployed = ("deploy",)
    return [
        Step("packages", "Unpack the packages", rig.prepare, 120),
        Step("train", "Begin to train target and drafter", partial(drafting.train, rig), 120, ("packages",)),
        Step(
            "stock", "Stock SGLang 0.5.9 fails by name", partial(drafting.stock_fails, rig), 260, ("train",)
        ),
        Step(
            "trees",
            "Patch environments with repatch.yml",
            partial(drafting.make_trees, rig),
            240,
            ("packages",),
        ),
        Step(
            "repatch",
            "Report, apply and revert patches to the byte",
            partial(drafting.repatch, rig),
            240,
            ("packages",),
        ),
        Step(
            "trained",
            "Target and drafter are trained",
            partial(drafting.trained, rig),
            sum(rig.seconds) + 240,
            ("train",),
        ),
        Step(
            "accept-length",
            "Accept length by patches and requests at once",
            partial(drafting.accept_lengths, rig),
            480,
            drafted,
        ),
        Step("judge", "The judge names the fault", partial(drafting.judge, rig), 30, ("accept-length",)),
        Step(
            "deploy",
            "site.yml with profile auto, to its receipt",
            partial(rollout.deploy, rig, host),
            900,
            ("trained",),
        ),
        Step(
            "deploy-again",
            "A second site.yml changes nothing",
            partial(rollout.deploy_again, rig, host),
            300,
            deployed,
        ),
        Step(
            "long-contexts",
            "The time of a step by length of context",
            partial(drafting.long_contexts, rig),
            420,
            drafted,
        ),
        Step(
            "verify",
            "verify.yml finds nothing",
            partial(rollout.other_playbook, host, "verify"),
            120,
            deployed,
        ),
        Step("drain", "An open stream comes to its end", partial(rollout.drain, host), 300, deployed),
        Step(
            "killed",
            "A killed scheduler is started again",
            partial(rollout.killed_scheduler, host),
            500,
            deployed,
        ),
        Step(
            "counts",
            "The check agrees with a count of our own",
            partial(counts.counts, rig, host),
            240,
            deployed,
        ),
        Step(
            "throughput",
            "throughput.yml",
            partial(rollout.other_playbook, host, "throughput", "--extra-vars", WIDE),
            420,
            deployed,
        ),
        Step(
            "repatch-release",
            "repatch.yml",
            partial(rollout.other_playbook, host, "repatch"),
            420,
            deployed,
        ),
        Step("watchdog", "A hanging scheduler is noticed", partial(rollout.watchdog, host), 600, deployed),
        Step(
            "parallel",
            "Tensor parallel with fusion on two cards",
            partial(drafting.tensor_parallel, rig),
            900,
            drafted,
        ),
    ]
