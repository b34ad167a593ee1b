"""Messages between neighbouring stages: received ahead, sent without waiting, in the schedule's order.

One `Link` is one direction between two stages: activations go down it or gradients come up it, and nothing else, so the
order of the messages alone says which is which (NCCL knows no tags). With NCCL every link has a process group of its
own: on a shared one a receive posted ahead would stand in the same queue as the send that has to overtake it.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from paci_lab.runtime.clipping import NOTE_BYTES
from paci_lab.schedules import Schedule

__all__ = ["Form", "Inbox", "LocalLink", "Outbox", "PeerLost", "agree_on_messages", "connect"]

AHEAD = 2
"""Receives posted before they are needed: one being filled while one waits to be used."""


class PeerLost(ConnectionError):
    """The rank at the other end is gone, or the connection to it."""


class Form(NamedTuple):
    """What every message of a run looks like.

    Args:
        shape, dtype: of its tensor.
        notes: it carries a note of lagged clipping behind the tensor, in the same buffer.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    notes: bool = False

    @property
    def numbers(self) -> int:
        """Of the buffer, in `dtype`."""
        return math.prod(self.shape) + (NOTE_BYTES // self.dtype.itemsize if self.notes else 0)

    def pack(self, message: Tensor, note: Tensor | None) -> Tensor:
        """The buffer to send."""
        if note is None:
            return message.contiguous()
        return torch.cat([message.flatten(), note.view(self.dtype)])

    def unpack(self, buffer: Tensor) -> tuple[Tensor, Tensor | None]:
        """(tensor, note) in a received buffer; the tensor lies in it."""
        if not self.notes:
            return buffer.view(self.shape), None
        numbers = math.prod(self.shape)
        # Cloned first: in bfloat16 the note need not lie where float32 may.
        return buffer[:numbers].view(self.shape), buffer[numbers:].clone().view(torch.float32)


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
        form, device: of every message.
        count: messages that will come in all.
        staged: receive into host memory and copy to the device, for gloo with GPUs.
        group: process group, the default one when None.

    Attributes:
        note: what the message taken last carried beside its tensor; None when messages carry nothing.
    """

    def __init__(
        self,
        peer: int,
        tag: int,
        form: Form,
        device: torch.device,
        count: int,
        *,
        staged: bool,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.peer, self.tag, self.form, self.device, self.staged, self.group = peer, tag, form, device, staged, group
        self.note: Tensor | None = None
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
                else torch.empty(
                    self.form.numbers,
                    dtype=self.form.dtype,
                    device="cpu" if self.staged else self.device,
                    pin_memory=self.staged,
                )
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
            self.free.append(buffer)
            buffer = buffer.to(self.device)
        message, self.note = self.form.unpack(buffer)
        return message

    def give_back(self, message: Tensor) -> None:
        """Reuse the memory of `message` for a later receive."""
        if not self.staged:
            self.free.append(message.as_strided((self.form.numbers,), (1,), 0))


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
        form: Form,
        in_flight: int,
        *,
        staged: bool,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.peer, self.tag, self.form, self.in_flight, self.staged, self.group = (
            peer,
            tag,
            form,
            in_flight,
            staged,
            group,
        )
        self.sent: deque[tuple[Tensor, dist.Work]] = deque()

    def send(self, message: Tensor, note: Tensor | None = None) -> None:
        """Send without waiting for the receiver. `message` must not be changed afterwards."""
        if tuple(message.shape) != self.form.shape or message.dtype != self.form.dtype:
            raise ValueError(
                f"message of shape {tuple(message.shape)} and {message.dtype}, agreed were {self.form.shape} and "
                f"{self.form.dtype}"
            )
        message = self.form.pack(message, note)
        if self.staged:
            message = message.cpu()
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
        self.sent: deque[tuple[Tensor, Tensor | None]] = deque()
        self.note: Tensor | None = None

    def send(self, message: Tensor, note: Tensor | None = None) -> None:
        self.sent.append((message, note))

    def take(self) -> Tensor:
        message, self.note = self.sent.popleft()
        return message

    def post(self) -> None:
        """Nothing to receive into."""

    def give_back(self, message: Tensor) -> None:
        """Nothing is used again: autograd owns the tensor."""

    def drain(self) -> None:
        """Taken at once, or never sent."""


def connect(
    schedule: Schedule,
    rank: int,
    form: Form,
    device: torch.device,
    backend: str,
    replicas: int = 1,
) -> tuple[dict[tuple[int, str], Inbox | LocalLink], dict[tuple[int, str], Outbox | LocalLink]]:
    """Links of `rank`, by (its stage, "F" for the message that a forward takes or makes, "B" for that of a backward).

    Every rank makes the links of all pipelines in the same order, because making a process group is collective.
    """
    staged = backend == "gloo" and device.type == "cuda"
    inboxes: dict[tuple[int, str], Inbox | LocalLink] = {}
    outboxes: dict[tuple[int, str], Outbox | LocalLink] = {}
    for replica, stage in itertools.product(range(replicas), range(schedule.stages - 1)):
        first = replica * schedule.ranks
        for kind, source, target in (("F", stage, stage + 1), ("B", stage + 1, stage)):
            sender, receiver = first + schedule.rank_of(source), first + schedule.rank_of(target)
            if sender == receiver:
                if rank == sender:
                    outboxes[source, kind] = inboxes[target, kind] = LocalLink()
                continue
            group = dist.new_group([sender, receiver]) if backend == "nccl" else None
            tag = 2 * stage + (kind == "B")
            if rank == sender:
                outboxes[source, kind] = Outbox(
                    receiver, tag, form, schedule.in_flight(stage), staged=staged, group=group
                )
                if group is not None:
                    dist.send(torch.zeros(1, device=device), receiver, group=group)  # build the communicator now
            if rank == receiver:
                if group is not None:
                    dist.recv(torch.zeros(1, device=device), sender, group=group)
                inboxes[target, kind] = Inbox(
                    sender, tag, form, device, len(schedule.stream), staged=staged, group=group
                )
    return inboxes, outboxes


def agree_on_messages(made: dict[int, Tensor], form: Form, store: dist.Store, schedule: Schedule, rank: int) -> None:
    """Check that what every stage really makes is what the next one expects; gloo itself would fill a buffer in part.

    Args:
        made: what each stage of this rank was seen to make.
        form: what the model and the precision promise.
    """

    def words(shape: tuple[int, ...], dtype: torch.dtype) -> str:
        return f"{tuple(shape)} in {str(dtype).removeprefix('torch.')}"

    for stage, output in made.items():
        store.set(f"shape/{stage}", words(output.shape, output.dtype))
    expected = words(form.shape, form.dtype)
    for stage in schedule.stages_of(rank):
        if stage > 0:
            there = store.get(f"shape/{stage - 1}").decode()
            if there != expected:
                raise ValueError(
                    f"stage {stage - 1} makes activations of shape {there}, stage {stage} expects {expected}"
                )
