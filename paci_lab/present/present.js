// The presenter's keys and buttons. All words come from Python; full screen needs a key or a click, so it is done here.

const KEYS = {
  " ": "toggle", s: "toggle", n: "next", ArrowRight: "next", PageDown: "next", p: "previous", ArrowLeft: "previous",
  PageUp: "previous", "-": "slower", "+": "faster", "=": "faster", f: "full", d: "dark", "?": "keys",
};

const SILENT_MS = 12000;  // Python is heard from every 2 s, and less often on a busy machine

function element(name, properties = {}, ...inside) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...inside);
  return made;
}

async function render({ model, el }) {
  const held = await model.widget_manager.get_model(model.get("of")), texts = held.get("texts");
  const ended = new AbortController(), { signal } = ended;
  el.classList.add("paci-lab-bar");

  const list = element("dl");
  for (const [action, [word, , keys]] of Object.entries(texts.actions)) {
    list.append(element("dt", {}, `${word} (${keys})`), element("dd", { textContent: texts.meanings[action] }));
  }
  const close = element("button", { type: "button", textContent: texts.close });
  const help = element("dialog", { className: "paci-lab-keys" }, element("h2", { textContent: texts.title }), list, close);
  help.setAttribute("aria-label", texts.title);
  close.addEventListener("click", () => help.close());

  const own = {
    full: () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen()),
    dark: () => (document.body.dataset.jpThemeLight = String(document.body.dataset.jpThemeLight === "false")),
    keys: () => (help.open ? help.close() : help.showModal()),
  };
  const act = (action) => (own[action] ? own[action]() : held.send({ action }));

  const bar = element("div", { className: "paci-lab-buttons", dir: texts.direction });
  bar.setAttribute("role", "toolbar");
  bar.setAttribute("aria-label", texts.bar);
  const buttons = {}, speed = element("span", { className: "speed" });
  for (const [action, [word, keys]] of Object.entries(texts.actions)) {
    const button = (buttons[action] = element("button", { type: "button" }, element("span", { textContent: word }), element("kbd", { textContent: keys })));
    button.dataset.action = action;
    button.title = texts.meanings[action];
    button.querySelector("kbd").setAttribute("aria-hidden", "true");
    button.addEventListener("click", (event) => {
      if (event.detail) button.blur();  // a click of the mouse: else Space would press it again instead of starting
      act(action);
    });
    bar.append(button);
    if (action === "slower") bar.append(speed);
  }
  const said = element("div", { className: "paci-lab-said" });
  said.setAttribute("role", "status");
  said.setAttribute("aria-live", "polite");
  el.append(bar, said, help);

  document.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
      const at = event.target;
      if (at.closest?.("input, textarea, select, [contenteditable=true]")) return;
      // It presses that button; the one of a list just closed keeps the focus for a moment, and presses nothing.
      if (at.closest?.("button") && (help.open || !help.contains(at)) && [" ", "Enter"].includes(event.key)) return;
      const action = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
      if (!action || (help.open && action !== "keys")) return;
      event.preventDefault();
      act(action);
    },
    { signal, capture: true },
  );

  const show = () => {
    const state = held.get("state");
    if (state.toggle) buttons.toggle.firstChild.textContent = state.toggle;
    speed.textContent = state.speed ?? "";
    for (const [action, button] of Object.entries(buttons)) button.disabled = (state.off ?? []).includes(action);
  };
  const tell = () => (said.textContent = held.get("said"));

  // Python is gone when its beat stands still: then nothing on the page is live any more, whatever it says.
  const gone = element("div", { className: "paci-lab-gone", dir: texts.direction });
  gone.setAttribute("role", "status");
  el.append(gone);
  let heard = performance.now();
  const hear = () => {
    heard = performance.now();
    watch();
  };
  const watch = () => {
    const silent = performance.now() - heard > SILENT_MS;
    if (silent === Boolean(gone.textContent)) return;
    gone.textContent = silent ? texts.ended : "";
    el.closest(".paci-lab-race")?.classList.toggle("paci-lab-silent", silent);
  };
  const watching = setInterval(watch, 1000);
  held.on("change:beat", hear);
  held.on("change:state", show);
  held.on("change:said", tell);
  show();
  tell();

  let body;
  const measure = new ResizeObserver(() => {
    const room = [body.clientWidth, body.clientHeight];
    if (room.every(Boolean) && String(room) !== String(held.get("room"))) {
      held.set("room", room);
      held.save_changes();
    }
  });
  const find = () => {
    const page = el.closest(".paci-lab-race");
    body = page?.querySelector(".paci-lab-race-body");
    if (body) {
      page.dir = texts.direction;
      measure.observe(body);
    }
    else if (!signal.aborted) requestAnimationFrame(find);
  };
  find();

  return () => {
    ended.abort();
    measure.disconnect();
    held.off("change:state", show);
    held.off("change:said", tell);
    held.off("change:beat", hear);
    clearInterval(watching);
  };
}

export default { render };
