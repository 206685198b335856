"""Which cards of a host the server uses, and the host as if it had no others.

They are named by UUID, or chosen by model: a host may have a card for a display beside them. What is judged, counted
and made a fingerprint of is the chosen ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import pci, smi
from .collect import Facts
from .host_rules import Wanted


@dataclass(frozen=True)
class Choice:
    """The cards that the server uses.

    Args:
        gpus: these, in the order of their use; all that could be meant where there is no choice.
        others: the cards beside them.
        found: what is there, for a message.
        problem: why there is no choice; empty if there is one.
        remedy: what gives one.
    """

    gpus: tuple[smi.Gpu, ...]
    others: tuple[smi.Gpu, ...]
    found: str
    problem: str = ""
    remedy: str = ""


def describe(gpus: Sequence[smi.Gpu]) -> str:
    """``8x NVIDIA A, 1x NVIDIA B``."""
    names = Counter(gpu.name or "a card without a name" for gpu in gpus)
    return ", ".join(f"{count}x {name}" for name, count in names.most_common())


def choose(gpus: Sequence[smi.Gpu], wanted: Wanted) -> Choice:
    """The cards of a host that the server uses.

    Named cards are used in the order of their names. Otherwise cards of a supported model are taken, of one model if
    it has enough, in the order of their PCI addresses, which CUDA_DEVICE_ORDER=PCI_BUS_ID gives to CUDA as well.

    Args:
        gpus: all cards of the host.
        wanted: ``gpus``, ``gpu_models`` and ``gpu_count`` of it count.
    """
    if wanted.gpus:
        return _by_uuid(gpus, wanted)
    fit = [gpu for gpu in gpus if gpu.name in wanted.gpu_models]
    if not fit:
        # Not one is of a supported model: all are judged, so that the report says what there is.
        return _taken(gpus, gpus[: wanted.gpu_count] if len(gpus) > wanted.gpu_count else gpus)
    if len(fit) <= wanted.gpu_count:
        return _taken(gpus, fit)
    by_model = {name: [gpu for gpu in fit if gpu.name == name] for name in dict.fromkeys(g.name for g in fit)}
    enough = [cards for cards in by_model.values() if len(cards) >= wanted.gpu_count]
    if len(enough) == 1:
        return _taken(gpus, enough[0][: wanted.gpu_count])
    return Choice(
        tuple(fit),
        tuple(gpu for gpu in gpus if gpu not in fit),
        describe(fit),
        f"{len(fit)} cards of {len(by_model)} supported models, and {wanted.gpu_count} are needed",
        "Name the cards in eagle3_server_gpus, by UUID (nvidia-smi -L shows them)",
    )


def _by_uuid(gpus: Sequence[smi.Gpu], wanted: Wanted) -> Choice:
    known = {gpu.uuid.lower(): gpu for gpu in gpus if gpu.uuid}
    chosen = [known[uuid.lower()] for uuid in wanted.gpus if uuid.lower() in known]
    missing = [uuid for uuid in wanted.gpus if uuid.lower() not in known]
    choice = _taken(gpus, chosen)
    if not missing:
        return choice
    shown = ", ".join(f"{gpu.uuid or 'a card without UUID'} ({gpu.name})" for gpu in gpus)
    return replace(
        choice,
        found=f"{len(chosen)}; there is no {', '.join(missing)}, but {shown or 'no card at all'}",
        problem=f"the {len(wanted.gpus)} cards of eagle3_server_gpus",
        remedy="Correct eagle3_server_gpus (nvidia-smi -L shows what there is), or look at dmesg for a lost card",
    )


def _taken(gpus: Sequence[smi.Gpu], chosen: Sequence[smi.Gpu]) -> Choice:
    others = tuple(gpu for gpu in gpus if gpu not in chosen)
    return Choice(tuple(chosen), others, describe(chosen))


def chosen(facts: Facts, wanted: Wanted) -> list[smi.Gpu]:
    """The cards that the server is to use; none where there are too few of them, or no choice."""
    if facts.query is None:
        return []
    choice = choose(facts.query.gpus, wanted)
    fit = not choice.problem and len(choice.gpus) == wanted.gpu_count
    return list(choice.gpus) if fit else []


def narrow(facts: Facts, choice: Choice) -> Facts:
    """The host as if it had the chosen cards alone."""
    if facts.query is None or not choice.others:
        return facts
    indices = [gpu.index for gpu in choice.gpus]
    addresses = [pci.full_address(gpu.bus_id) for gpu in choice.gpus]
    # A card that fell off the bus is among none of them, and its error stays.
    elsewhere = {pci.full_address(gpu.bus_id).split(".")[0] for gpu in choice.others}
    above = {part for address in addresses for part in facts.paths.get(address, ()) if part != address}
    capability = list(facts.compute_capability)
    return replace(
        facts,
        query=replace(facts.query, gpus=choice.gpus),
        compute_capability=[capability[index] for index in indices if index < len(capability)],
        links=facts.links and facts.links.only(indices),
        peer_read=facts.peer_read and facts.peer_read.only(indices),
        peer_write=facts.peer_write and facts.peer_write.only(indices),
        xids=[xid for xid in facts.xids if xid.address not in elsewhere],
        cards={address: port for address, port in facts.cards.items() if address in addresses},
        ports_above=[port for port in facts.ports_above if not facts.paths or port.address in above],
        numa={address: node for address, node in facts.numa.items() if address in addresses},
    )
