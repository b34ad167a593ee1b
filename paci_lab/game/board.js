// The board of the schedule-design game: it shows what the kernel holds and sends what the player does. No rule is here.

const KINDS = "FBIWU", DRAG_PX = 5;

function make(tag, name, parent, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

class Board {
  constructor(el, held) {
    this.held = held;
    this.words = held.get("words");
    this.rank = this.at = 0;
    this.number = "";
    this.cells = new Map();  // of operations: kept while they are on the board, so that focus and reader stay on them
    this.build(el);
    this.draw = () => this.show(held.get("board"));
    held.on("change:board", this.draw);
    this.draw();
  }

  send(message) {
    this.held.send(message);
  }

  // -- what is made once ----------------------------------------------------------------------------------------
  build(el) {
    const words = this.words, root = (this.root = make("div", "paci-game", el));
    root.dir = words.direction;
    root.lang = words.lang;
    root.dataset.lmSuppressShortcuts = "true";  // JupyterLab would take letters for commands of its own
    const bar = make("div", "bar", root);
    bar.setAttribute("role", "toolbar");
    bar.setAttribute("aria-label", words.tools);
    this.buttons = {};
    for (const name of ["undo", "redo", "remove", "clear", "", "idea", "legal", "hint", "step", "solution"]) {
      if (!name) { make("i", "", bar); make("span", "", bar, words.help); continue; }
      const button = (this.buttons[name] = make("button", "", bar, words[name]));
      button.type = "button";
      button.dataset.do = name;
      button.onclick = () => this.send(name === "remove" ? { do: name, op: this.chosen() } : { do: name });
    }
    const frame = make("div", "frame", root);
    frame.dir = "ltr";  // time runs to the right in every language
    this.plan = make("div", "plan", frame);
    this.axis = make("div", "axis", this.plan);
    this.axis.setAttribute("aria-hidden", "true");
    this.grid = make("div", "grid", this.plan);
    this.grid.setAttribute("role", "grid");
    this.grid.setAttribute("aria-label", words.grid);
    this.par = make("div", "par", this.plan);
    this.par.setAttribute("aria-hidden", "true");
    this.said = make("p", "said", root);
    this.said.setAttribute("role", "status");
    this.said.setAttribute("aria-live", "polite");
    this.said.dir = "auto";
    this.chips = make("div", "chips", root);
    this.chips.setAttribute("role", "toolbar");
    make("p", "keys", root, words.keys);
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener("focusin", (event) => this.focused(event.target));
    this.chips.addEventListener("keydown", (event) => this.alongChips(event));
    root.addEventListener("keydown", (event) => this.takeBack(event));
    root.addEventListener("pointerdown", (event) => this.press(event));
  }

  // -- what changes ---------------------------------------------------------------------------------------------
  show(board) {
    const inGrid = this.grid.contains(document.activeElement), was = this.board && this.cell();
    this.board = board;
    this.rank = Math.min(this.rank, board.ranks.length - 1);
    this.plan.style.setProperty("--span", board.span);
    this.axis.replaceChildren();
    for (let unit = 0; unit < board.span; unit += board.span > 30 ? 2 : 1) {
      make("span", "", this.axis, unit).style.left = `${(100 * unit) / board.span}%`;
    }
    this.par.replaceChildren();
    make("span", "", this.par, board.par_text);
    this.par.style.left = `calc(76px + (100% - 76px) * ${board.par / board.span})`;
    while (this.grid.children.length > board.ranks.length) this.grid.lastChild.remove();
    const kept = new Map();
    board.ranks.forEach((rank, number) => this.showRank(rank, number, kept));
    this.cells = kept;
    const cells = [...this.grid.children[this.rank].children[1].children], index = cells.indexOf(was);
    this.at = index < 0 ? Math.min(this.at, cells.length - 1) : index;  // the cursor stays where it is among the operations
    this.place(inGrid);
    this.showChips(document.activeElement?.closest?.(".chips") === this.chips ? document.activeElement.dataset.op : "");
    this.buttons.undo.disabled = !board.undo;
    this.buttons.redo.disabled = !board.redo;
    this.said.textContent = board.said + (this.said.textContent === board.said && board.said ? "\u00a0" : "");
    this.said.classList.toggle("no", board.refused !== "");
    this.root.dataset.number = board.number;
    this.root.classList.toggle("won", board.won);
  }

  showRank(rank, number, kept) {
    let row = this.grid.children[number];
    if (!row) {
      row = make("div", "row", this.grid);
      row.setAttribute("role", "row");
      make("div", "name", row).setAttribute("role", "rowheader");
      const track = make("div", "track", row);
      track.setAttribute("role", "presentation");
      const end = make("div", "end", track, "+");
      end.setAttribute("role", "gridcell");
      end.tabIndex = -1;
    }
    row.children[0].textContent = rank.name;
    const track = row.children[1], board = this.board;
    rank.ops.forEach((op, at) => {
      let cell = this.cells.get(op.op);
      if (!cell) {
        cell = make("div", "", null);
        cell.setAttribute("role", "gridcell");
        cell.tabIndex = -1;
        cell.dataset.op = op.op;
        make("b", "", cell, op.text);
      }
      cell.className = this.marks(`op ${op.kind}`, op.op);
      if (op.kind !== "U") Object.assign(cell.style, { backgroundColor: op.fill, color: op.ink });
      cell.style.left = `${(100 * op.from) / board.span}%`;
      if (op.kind !== "U") cell.style.width = `${(100 * (op.to - op.from)) / board.span}%`;
      cell.setAttribute("aria-label", op.label);
      cell.title = op.label;
      kept.set(op.op, cell);
      if (track.children[at] !== cell) track.insertBefore(cell, track.children[at]);
    });
    while (track.children.length > rank.ops.length + 1) track.children[rank.ops.length].remove();
    const end = track.lastChild;
    end.style.left = `calc(${(100 * rank.free) / board.span}% + 4px)`;
    end.setAttribute("aria-label", rank.end);
    end.title = rank.end;
  }

  marks(name, op) {
    if (op === this.board.refused) name += " refused";
    if (op === this.board.hinted) name += " hinted";
    return name;
  }

  showChips(focus) {
    const rank = this.board.ranks[this.rank];
    this.chips.setAttribute("aria-label", rank.chips_label);
    const shown = rank.chips.map((op, number) => {
      const legal = op.legal === null ? "" : op.legal ? " legal" : " blocked";
      const chip = make("button", this.marks(`chip ${op.kind}${legal}`, op.op), null);
      make("b", "", chip, op.text);
      chip.type = "button";
      chip.dataset.op = op.op;
      chip.tabIndex = number ? -1 : 0;
      chip.setAttribute("aria-label", op.label);
      chip.title = op.label;
      if (op.kind !== "U") Object.assign(chip.style, { backgroundColor: op.fill, color: op.ink });
      chip.onclick = () => this.dragged || this.send({ do: "place", op: op.op });
      return chip;
    });
    this.chips.replaceChildren(make("span", "", null, rank.chips_label), ...shown);
    if (focus) (shown.find((chip) => chip.dataset.op === focus) ?? shown[0] ?? this.cell()).focus();
  }

  // -- the cursor -----------------------------------------------------------------------------------------------
  cell(rank = this.rank, at = this.at) {
    return this.grid.children[rank].children[1].children[at];
  }

  chosen() {
    return this.cell()?.dataset.op ?? this.board.ranks[this.rank].ops.at(-1)?.op ?? "";
  }

  place(focus) {
    this.grid.querySelectorAll("[tabindex='0']").forEach((cell) => (cell.tabIndex = -1));
    [...this.grid.children].forEach((row, rank) => row.classList.toggle("here", rank === this.rank));
    this.cell().tabIndex = 0;
    if (focus && document.activeElement !== this.cell()) this.cell().focus();
  }

  go(rank, at) {
    const before = this.rank;
    this.rank = Math.max(0, Math.min(rank, this.board.ranks.length - 1));
    this.at = Math.max(0, Math.min(at, this.board.ranks[this.rank].ops.length));
    this.place(true);
    if (before !== this.rank) this.showChips("");
  }

  focused(target) {
    const cell = target.closest("[role=gridcell]");
    if (!cell) return;
    const rank = [...this.grid.children].indexOf(cell.closest(".row")), at = [...cell.parentElement.children].indexOf(cell);
    if (rank !== this.rank || at !== this.at) this.go(rank, at);
  }

  // From one rank to another, the cursor stays at its time, and at the end when it is there.
  across(rank) {
    const here = this.board.ranks[this.rank].ops, there = this.board.ranks[rank]?.ops;
    if (!there) return;
    const later = this.at < here.length ? there.findIndex((op) => op.to > here[this.at].from) : -1;
    this.go(rank, later < 0 ? there.length : later);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { ops } = this.board.ranks[this.rank], kind = event.key.toUpperCase();
    if (event.key === "ArrowLeft") this.go(this.rank, this.at - 1);
    else if (event.key === "ArrowRight") this.go(this.rank, this.at + 1);
    else if (event.key === "ArrowUp") this.across(this.rank - 1);
    else if (event.key === "ArrowDown") this.across(this.rank + 1);
    else if (event.key === "Home") this.go(this.rank, 0);
    else if (event.key === "End") this.go(this.rank, ops.length);
    else if (/^\d$/.test(event.key)) this.number = (this.number + event.key).slice(-4);
    else if (event.key === "Backspace" || event.key === "Delete") this.send({ do: "remove", op: this.chosen() });
    else if (kind.length === 1 && KINDS.includes(kind)) {
      const number = this.number === "" ? null : Number(this.number);
      this.send({ do: "next", rank: this.rank, kind, number, at: this.at < ops.length ? this.at : null });
    } else return;
    if (!/^\d$/.test(event.key)) this.number = "";
    event.preventDefault();
    event.stopPropagation();
  }

  takeBack(event) {
    if (!(event.ctrlKey || event.metaKey) || !/^[zy]$/i.test(event.key)) return;
    this.send({ do: event.key.toLowerCase() === "y" || event.shiftKey ? "redo" : "undo" });
    event.preventDefault();
    event.stopPropagation();
  }

  alongChips(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const chips = [...this.chips.querySelectorAll("button")], to = chips[chips.indexOf(document.activeElement) + step];
    if (!to) return;
    chips.forEach((chip) => (chip.tabIndex = chip === to ? 0 : -1));
    to.focus();
    event.preventDefault();
    event.stopPropagation();
  }

  // -- the mouse ------------------------------------------------------------------------------------------------
  press(event) {
    const from = event.target.closest("[data-op]"), track = event.target.closest(".track");
    this.dragged = false;
    if (event.button) return;
    if (!from) {
      if (track) this.go([...this.grid.children].indexOf(track.parentElement), Infinity);
      return;
    }
    const { clientX: x, clientY: y } = event, placed = from.classList.contains("op");
    let ghost = null;
    const move = (now) => {
      if (!ghost && Math.hypot(now.clientX - x, now.clientY - y) < DRAG_PX) return;
      if (!ghost) {
        this.dragged = true;
        const box = from.getBoundingClientRect(), holder = make("div", "paci-game paci-game-ghost", document.body);
        ghost = from.cloneNode(true);
        Object.assign(ghost.style, { position: "static", margin: 0, width: `${box.width}px` });
        holder.append(ghost);
      }
      Object.assign(ghost.parentElement.style, { left: `${now.clientX - 20}px`, top: `${now.clientY - 20}px` });
    };
    const drop = (now) => {
      stop();
      if (!ghost) return;
      const target = document.elementFromPoint(now.clientX, now.clientY), onto = target?.closest?.(".track");
      if (onto && this.grid.contains(onto)) this.drop(from.dataset.op, placed, onto, now.clientX);
      else if (placed) this.send({ do: "remove", op: from.dataset.op });
    };
    const stop = () => {
      document.removeEventListener("pointermove", move);
      document.removeEventListener("pointerup", drop);
      document.removeEventListener("pointercancel", stop);
      ghost?.parentElement.remove();
    };
    document.addEventListener("pointermove", move);
    document.addEventListener("pointerup", drop);
    document.addEventListener("pointercancel", stop);
  }

  drop(op, placed, track, clientX) {
    const box = track.getBoundingClientRect(), time = ((clientX - box.left) / box.width) * this.board.span;
    const { ops } = this.board.ranks[[...this.grid.children].indexOf(track.parentElement)];
    const later = ops.findIndex((other) => time < (other.from + other.to) / 2), at = later < 0 ? ops.length : later;
    this.send({ do: placed ? "move" : "place", op, at });
  }

  close() {
    this.held.off("change:board", this.draw);
  }
}

async function render({ model, el }) {
  const held = await model.widget_manager.get_model(model.get("of"));
  const board = new Board(el, held);
  return () => board.close();
}

export default { render };
