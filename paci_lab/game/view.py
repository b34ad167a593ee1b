"""The game as a person plays it: level, board, score, shared text, and the finished board on real ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from paci_lab.errors import InputError, RunFailed
from paci_lab.game import assist
from paci_lab.game.board import Board, Refusal
from paci_lab.game.front import BoardFront
from paci_lab.game.levels import Level, level_named, levels
from paci_lab.game.progress import Progress
from paci_lab.game.run import board_spec
from paci_lab.game.score import score
from paci_lab.game.share import board_of, text_of
from paci_lab.game.shown import outcome, score_html, sentence_widget, task_html
from paci_lab.language import _
from paci_lab.lessons import training
from paci_lab.runtime.launch import Run, launch, new_folder
from paci_lab.schedules import Op
from paci_lab.show.live import live
from paci_lab.show.notebook import Problems, listen_while_busy

__all__ = ["Game", "play"]


def play(level: str | None = None, *, folder: str | Path = ".") -> Game:
    """Open the game.

    Args:
        level: where to begin; the one played last, or the first.
        folder: where what is reached is kept, and runs go.

    Raises InputError when there is no such level or a notebook package is missing.
    """
    return Game(level, folder=folder)


class Game:
    """The board with everything around it; shown by being the last value of a cell.

    Attributes:
        widget: the whole view. controls: its own buttons and fields by name. front: the board in the page.
        board, help, progress: what is played. run: what was started last on real ranks, or None.
        problems: what went wrong.
    """

    def __init__(self, level: str | None = None, *, folder: str | Path = ".") -> None:
        self.folder = Path(folder)
        self.progress = Progress(folder)
        self.run: Run | None = None
        self._telling = False
        self.problems = Problems()
        self.front = BoardFront(self._heard)
        self.controls = self._make_controls()
        self._task, self._score, self._ran = widgets.HTML(), widgets.HTML(), widgets.VBox()
        self.widget = self._layout()
        known = [one.id for one in levels()]
        self._open(level_named(level or (self.progress.last if self.progress.last in known else known[0])))
        c = self.controls
        c["level"].observe(self._chose, "value")
        c["load"].on_click(lambda _button: self._guarded(self._load))
        c["run"].on_click(lambda _button: self._guarded(self._start))
        c["stop"].on_click(lambda _button: self._guarded(self._stop))

    def _repr_mimebundle_(self, **options: Any) -> Mapping[str, Any]:
        return self.widget._repr_mimebundle_(**options)

    # -- what is made once ----------------------------------------------------------------------------------------
    def _make_controls(self) -> dict[str, Any]:
        style = {"description_width": "initial"}
        return {
            "level": widgets.Dropdown(
                description=_("Level"), style=style, layout=widgets.Layout(width="min(420px, 100%)")
            ),
            "text": widgets.Text(
                description=_("To share:"),
                style=style,
                continuous_update=False,
                layout=widgets.Layout(flex="1 1 320px"),
            ),
            "load": widgets.Button(
                description=_("Lay out"), tooltip=_("Put the board that this text describes in the place of yours")
            ),
            "run": widgets.Button(
                description=_("Run it"), icon="play", button_style="primary", tooltip=_("On real, paced processes")
            ),
            "stop": widgets.Button(description=_("Stop"), icon="stop", disabled=True, tooltip=_("End the run now")),
        }

    def _layout(self) -> widgets.Widget:
        c = self.controls
        parts = [
            c["level"],
            self._task,
            self.front.in_page,
            self._score,
            widgets.HBox([c["text"], c["load"]], layout=widgets.Layout(flex_flow="row wrap")),
            widgets.HBox([c["run"], c["stop"]]),
            self.problems.widget,
            self._ran,
        ]
        view = widgets.VBox(parts, layout=widgets.Layout(width="100%"))
        view.add_class("paci-lab-game")
        return view

    # -- a level --------------------------------------------------------------------------------------------------
    def _open(self, level: Level) -> None:
        self.board, self.help = self.progress.board(level), self.progress.help(level)
        self._task.value = task_html(level)
        if any(self.board.lines):
            said = _("Level {title}, as you left it.").format(title=level.title) + " " + score(self.board).words()
        else:
            said = _("Level {title}: place the first operation.").format(title=level.title)
        self._show(self.progress.note or said)

    def _chose(self, change: Mapping[str, Any]) -> None:
        if not self._telling:
            self._guarded(lambda: self._open(level_named(change["new"])))

    def _show(self, said: str, *, refused: str = "", hinted: str = "") -> None:
        now = score(self.board)
        legal = self.board.legal() if self.help.legal else None
        self.front.show(self.board, said, refused=refused, hinted=hinted, legal=legal, won=now.won)
        self._score.value = score_html(now, self.help)
        self.controls["text"].value = text_of(self.board)
        self.controls["run"].disabled = not now.complete or not training()
        options = [
            (f"{number}. {level.title}{' ✓' if self.progress.solved(level) else ''}", level.id)
            for number, level in enumerate(levels(), 1)
        ]
        choice = self.controls["level"]
        if tuple(options) != choice.options or choice.value != self.board.level.id:
            self._telling = True  # new options choose the first of them for a moment
            choice.options = options
            choice.value = self.board.level.id
            self._telling = False
        listen_while_busy(*self.controls.values())

    def _guarded(self, action: Any) -> None:
        """Do what a button or the page asks; a refusal is said where the board is, not lost."""
        with self.problems.caught():
            try:
                action()
            except (InputError, RunFailed) as error:
                self._show(str(error), refused="-")

    # -- moves ----------------------------------------------------------------------------------------------------
    def _heard(self, asked: Mapping[str, Any]) -> None:
        self._guarded(lambda: self._do(asked))

    def _do(self, asked: Mapping[str, Any]) -> None:
        what, board, was = asked.get("do"), self.board, self.board.lines
        refusal, hinted = None, ""
        if what == "next":
            said, refusal = self._place_next(asked)
        elif what in ("place", "move", "remove") and asked.get("op"):
            op = Op.parse(str(asked["op"]))
            if what == "remove":
                refusal = board.remove(op)
            else:
                refusal = (board.move if what == "move" else board.place)(op, asked.get("at"))
            said = str(refusal or (_("{op} is taken off.").format(op=op) if what == "remove" else self._placed(op)))
        elif what in ("undo", "redo"):
            done = board.undo() if what == "undo" else board.redo()
            said = {
                ("undo", True): _("The last move is taken back."),
                ("undo", False): _("There is no move to take back."),
                ("redo", True): _("The move is made again."),
                ("redo", False): _("There is no move to make again."),
            }[what, done]
        elif what == "clear":
            board.put(((),) * board.level.stages)
            said = _("The board is empty. Undo brings it back.")
        elif what in ("idea", "legal", "hint", "step", "solution"):
            said, hinted = self._help(what)
        else:
            return
        now = score(board)
        if now.complete and board.lines != was:
            said = said + " " + now.words()
        if board.lines != was or hinted or what in ("idea", "legal"):
            # A level is solved by the player's own last move.
            self.progress.keep(board, self.help, solved=now.won and what in ("next", "place", "move"))
            said = f"{said} {self.progress.note}".strip()
        self._show(said, refused=str(refusal.op) if refusal else "", hinted=hinted)

    def _place_next(self, asked: Mapping[str, Any]) -> tuple[str, Refusal | None]:
        rank, kind, number = asked["rank"], asked["kind"], asked.get("number")
        if number is None:
            left = [op for op in self.board.left(rank) if op.kind == kind]
            if not left:
                return self._none_such(Op(rank, kind, 0)), None
            op = left[0]
        else:
            op = Op(rank, kind, number)
            if op not in self.board.level.ops(rank):
                return self._none_such(op), None
        refusal = self.board.place(op, asked.get("at"))
        return str(refusal or self._placed(op)), refusal

    def _none_such(self, op: Op) -> str:
        """Why there is no `op` to be placed."""
        if op.kind not in self.board.level.kinds:
            kinds = ", ".join(self.board.level.kinds)
            return _("This level has no {kind}: its operations are {kinds}.").format(kind=op.kind, kinds=kinds)
        if op in self.board.level.ops(op.stage):
            return _("All {kind} of rank {rank} are placed.").format(kind=op.kind, rank=op.stage)
        return _("This level has no {op}.").format(op=op)

    def _placed(self, op: Op) -> str:
        code = self.board.trace.of_kind(op.kind)
        event = next(e for e in code if (e.stage, e.microbatch) == (op.stage, op.microbatch))
        said = _("{op} is placed, from {start:g} to {end:g}.") if op.kind != "U" else _("{op} is placed, at {start:g}.")
        return said.format(op=op, start=event.start_ns / 1e6, end=event.end_ns / 1e6)

    def _help(self, what: str) -> tuple[str, str]:
        """Give one step of help: a sentence, and the operation to be marked."""
        board = self.board
        if what == "idea":
            self.help.idea = True
            return board.level.idea, ""
        if what == "legal":
            self.help.legal = not self.help.legal
            if not self.help.legal:
                return _("Legal operations are no longer shown."), ""
            names = ", ".join(map(str, board.legal())) or _("none: take something back")
            return _("Legal now, each at the end of its rank: {list}.").format(list=names), ""
        if what == "solution":
            self.help.solution = True
            assist.show_solution(board)
            return _("This is the solution. Undo brings your board back."), ""
        step = assist.next_step(board) if what == "hint" else assist.take_step(board)
        if step is None:
            return _("The solution lies there already."), ""
        if what == "hint":
            self.help.hints += 1
            return str(step), str(step.op)
        self.help.steps += 1
        return (_("{op} is taken off.").format(op=step.op) if step.back else self._placed(step.op)), str(step.op)

    # -- shared texts and real ranks ------------------------------------------------------------------------------
    def _load(self) -> None:
        try:
            shared = board_of(self.controls["text"].value, self.board.level)
        except InputError as error:
            self._show(_("This text cannot be laid out. {why}").format(why=error.fix), refused="-")
            return
        self.board.put(shared.lines)
        now = score(self.board)
        self.progress.keep(self.board, self.help, solved=False)
        self._show(_("The shared board is laid out. Undo brings yours back.") + " " + now.words())

    def _start(self) -> None:
        if self.run is not None and self.run.running:
            raise InputError(_("run"), _("going on"), _("one at a time"), _("stop it first"))
        board = Board(self.board.level, self.board.lines)  # play may go on
        spec = board_spec(board)
        self.controls["run"].disabled = True
        self._ran.children = [sentence_widget(_("Starting {count} processes …").format(count=board.level.stages))]

        def start() -> None:
            with self.problems.caught():
                self.run = launch(spec, self.folder / new_folder(spec))
                view = live(self.run.path)  # without a Stop of its own: the game's is there
                self._ran.children = [view.widget]
                self.controls["stop"].disabled = False
                listen_while_busy(*self.controls.values())
                with contextlib.suppress(RunFailed):  # the view says what became of it
                    self.run.wait()
                    view.close()
                    self._ran.children = outcome(self.run, board)
            self.controls["stop"].disabled, self.controls["run"].disabled = True, False
            listen_while_busy(*self.controls.values())

        threading.Thread(target=start, name="paci-lab game run", daemon=True).start()

    def _stop(self) -> None:
        if self.run is not None:
            self.run.stop()
