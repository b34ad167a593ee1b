"""Messages between neighbouring stages: received ahead, sent without waiting, in the schedule's order.

One `Link` is one direction between two stages: activations go down it or gradients come up it, and nothing else, so the
order of the messages alone says which is which (NCCL knows no tags). With NCCL every link has a process group of its
own: on a shared one a receive posted ahead would stand in the same queue as the send that has to overtake it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paci_lab.schedules import Schedule

__all__ = ["Inbox", "LocalLink", "Outbox", "PeerLost", "agree_on_messages", "connect"]

AHEAD = 2
"""Receives posted before they are needed: one being filled while one waits to be used."""


class PeerLost(ConnectionError):
    """The rank at the other end is gone, or the connection to it."""


def _guarded(peer: int, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return action(*arguments, **options)
    except RuntimeError as error:
        raise PeerLost(f"lost the connection to rank {peer}: {error}") from error


class Inbox:
    """The receiving end of a link.

    Args:
        peer: rank that sends.
        tag: of the link, the same at both ends.
        shape, device: of every message, float32.
        count: messages that will come in all.
        staged: receive into host memory and copy to the device, for gloo with GPUs.
        group: process group, the default one when None.
    """

    def __init__(
        self,
        peer: int,
        tag: int,
        shape: tuple[int, ...],
        device: torch.device,
        count: int,
        *,
        staged: bool,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.peer, self.tag, self.shape, self.device, self.staged, self.group = peer, tag, shape, device, staged, group
        self.unposted = count
        self.free: list[Tensor] = []
        self.posted: deque[tuple[Tensor, dist.Work]] = deque()
        self.post()

    def post(self) -> None:
        """Post receives until `AHEAD` are."""
        while self.unposted and len(self.posted) < AHEAD:
            buffer = (
                self.free.pop()
                if self.free
                else torch.empty(self.shape, device="cpu" if self.staged else self.device, pin_memory=self.staged)
            )
            work = _guarded(self.peer, dist.irecv, buffer, self.peer, group=self.group, tag=self.tag)
            self.posted.append((buffer, work))
            self.unposted -= 1

    def take(self) -> Tensor:
        """The next message; blocks until it is there. Call `post` soon after, and `give_back` with the message once
        nothing reads it any more."""
        buffer, work = self.posted.popleft()
        _guarded(self.peer, work.wait)  # on NCCL this makes the stream wait, not the host
        if self.staged:
            message = buffer.to(self.device)
            self.free.append(buffer)
        else:
            message = buffer
        return message

    def give_back(self, message: Tensor) -> None:
        """Reuse the memory of `message` for a later receive."""
        if not self.staged:
            self.free.append(message)


class Outbox:
    """The sending end of a link.

    A sent tensor is kept until its send is known to be over. gloo cannot be asked without waiting, but at most
    `in_flight` messages can be under way on a link (the receiver has answered all earlier ones), so waiting for the
    oldest of more than that never blocks.
    """

    def __init__(
        self,
        peer: int,
        tag: int,
        shape: tuple[int, ...],
        in_flight: int,
        *,
        staged: bool,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.peer, self.tag, self.shape, self.in_flight, self.staged, self.group = (
            peer,
            tag,
            shape,
            in_flight,
            staged,
            group,
        )
        self.sent: deque[tuple[Tensor, dist.Work]] = deque()

    def send(self, message: Tensor) -> None:
        """Send without waiting for the receiver. `message` must not be changed afterwards."""
        if tuple(message.shape) != self.shape or message.dtype != torch.float32:
            raise ValueError(
                f"message of shape {tuple(message.shape)} and {message.dtype}, agreed were {self.shape} and float32"
            )
        if self.staged:
            message = message.cpu()
        message = message.contiguous()
        work = _guarded(self.peer, dist.isend, message, self.peer, group=self.group, tag=self.tag)
        self.sent.append((message, work))
        while len(self.sent) > self.in_flight + AHEAD:
            self._wait_for_oldest()

    def drain(self) -> None:
        """Wait until everything sent has been received."""
        while self.sent:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        _, work = self.sent.popleft()
        _guarded(self.peer, work.wait)


class LocalLink:
    """Both ends of a link between two stages of one rank: a message is the tensor itself."""

    def __init__(self) -> None:
        self.sent: deque[Tensor] = deque()

    def send(self, message: Tensor) -> None:
        self.sent.append(message)

    def take(self) -> Tensor:
        return self.sent.popleft()

    def post(self) -> None:
        """Nothing to receive into."""

    def give_back(self, message: Tensor) -> None:
        """Nothing is used again: autograd owns the tensor."""

    def drain(self) -> None:
        """Taken at once, or never sent."""


def connect(
    schedule: Schedule,
    rank: int,
    shape: tuple[int, ...],
    device: torch.device,
    backend: str,
) -> tuple[dict[tuple[int, str], Inbox | LocalLink], dict[tuple[int, str], Outbox | LocalLink]]:
    """Links of `rank`, by (its stage, "F" for the message that a forward takes or makes, "B" for that of a backward).

    Every rank makes the links of the whole pipeline in the same order, because making a process group is collective.
    """
    staged = backend == "gloo" and device.type == "cuda"
    inboxes: dict[tuple[int, str], Inbox | LocalLink] = {}
    outboxes: dict[tuple[int, str], Outbox | LocalLink] = {}
    for stage in range(schedule.stages - 1):
        for kind, source, target in (("F", stage, stage + 1), ("B", stage + 1, stage)):
            sender, receiver = schedule.rank_of(source), schedule.rank_of(target)
            if sender == receiver:
                if rank == sender:
                    outboxes[source, kind] = inboxes[target, kind] = LocalLink()
                continue
            group = dist.new_group([sender, receiver]) if backend == "nccl" else None
            tag = 2 * stage + (kind == "B")
            if rank == sender:
                outboxes[source, kind] = Outbox(
                    receiver, tag, shape, schedule.in_flight(stage), staged=staged, group=group
                )
                if group is not None:
                    dist.send(torch.zeros(1, device=device), receiver, group=group)  # build the communicator now
            if rank == receiver:
                if group is not None:
                    dist.recv(torch.zeros(1, device=device), sender, group=group)
                inboxes[target, kind] = Inbox(
                    sender, tag, shape, device, len(schedule.stream), staged=staged, group=group
                )
    return inboxes, outboxes


def agree_on_messages(
    shapes: dict[int, tuple[int, ...]], boundary: tuple[int, ...], store: dist.Store, schedule: Schedule, rank: int
) -> None:
    """Check that what every stage really makes is what the next one expects; gloo itself would fill a buffer in part.

    Args:
        shapes: the shape that each stage of this rank was seen to make.
        boundary: the shape that the model promises.
    """
    for stage, shape in shapes.items():
        store.set(f"shape/{stage}", repr(tuple(shape)))
    for stage in schedule.stages_of(rank):
        if stage > 0:
            there = store.get(f"shape/{stage - 1}").decode()
            if there != repr(tuple(boundary)):
                raise ValueError(
                    f"stage {stage - 1} makes activations of shape {there}, stage {stage} expects {tuple(boundary)}"
                )
