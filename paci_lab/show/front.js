// The browser's side of the notebook views. It says whether the page is dark, paints the bars of a picture that moves,
// and answers when a picture has been drawn. Plotly draws all else, and the bars of a picture that stands still.

function pageIsDark(el) {
  const lab = document.body.dataset.jpThemeLight;
  if (lab) return lab === "false";
  for (let at = el; at; at = at.parentElement) {
    const [r, g, b, alpha = 1] = getComputedStyle(at).backgroundColor.match(/[\d.]+/g).map(Number);
    if (alpha > 0.9) return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
  }
  return false;
}

// What a picture is made of: a rectangle is [from, to, top, bottom] in the units of the chart's axes.
function unpack(picture) {
  const bytes = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  const boxes = new Float32Array(bytes(picture.boxes).slice().buffer);  // a copy, for floats must begin at a multiple of 4
  return { ...picture, boxes, looks: bytes(picture.looks), packed: bytes(picture.words) };
}

function fillOf(ctx, look) {
  if (!look.pattern) return look.fill;
  const tile = new OffscreenCanvas(7, 7), pen = tile.getContext("2d");
  pen.fillStyle = look.fill;
  pen.fillRect(0, 0, 7, 7);
  pen.fillStyle = pen.strokeStyle = "rgba(254, 254, 254, 0.5)";
  pen.lineWidth = 1.75;
  if (look.pattern === "/") for (const x of [-7, 0, 7]) { pen.moveTo(x, 7); pen.lineTo(x + 7, 0); pen.stroke(); }
  else { pen.arc(3.5, 3.5, 2, 0, 7); pen.fill(); }
  return ctx.createPattern(tile, "repeat");
}

class Painter {
  constructor(el) {
    this.el = el;
    this.move = (event) => this.point(event);
    this.leave = () => this.tip.remove();
    this.tip = document.createElement("div");
    this.tip.className = "paci-lab-tip";
    this.tip.style.cssText = "position:absolute;z-index:5;padding:6px 10px;font:15px Inter,'Segoe UI',Arial,sans-serif;"
      + "line-height:1.35;pointer-events:none;white-space:nowrap;border:1px solid #fefefe";
    this.canvas = document.createElement("canvas");
    this.canvas.className = "paci-lab-moving";
    this.canvas.style.cssText = "position:absolute;pointer-events:none";
  }

  chart() {
    const chart = this.el.closest(".paci-lab-view")?.querySelector(".js-plotly-plot");
    if (chart !== this.at) {
      this.stop();
      this.at = chart;
      chart?.addEventListener("mousemove", this.move);
      chart?.addEventListener("mouseleave", this.leave);
    }
    return chart?._fullLayout?.meta?.gantt && chart._fullLayout.xaxis._length ? chart : null;
  }

  stop() {
    this.canvas.remove();
    this.tip.remove();
    this.at?.removeEventListener("mousemove", this.move);
    this.at?.removeEventListener("mouseleave", this.leave);
    this.at = null;
  }

  show(picture) {
    const chart = this.chart();
    this.picture = chart && picture.boxes ? unpack(picture) : null;
    if (!this.picture) {
      this.canvas.remove();
      this.tip.remove();
    } else this.paint(chart);
    this.canvas.dataset.number = picture.number ?? 0;
    return chart !== null;
  }

  paint(chart) {
    const { xaxis: x, yaxis: y } = chart._fullLayout, { span, rows, boxes, looks, table, texts } = this.picture;
    const host = chart.querySelector(".svg-container"), dots = window.devicePixelRatio || 1;
    const wide = Math.round(x._length * dots), high = Math.round(y._length * dots), canvas = this.canvas;
    if (canvas.parentElement !== host) host.append(canvas);
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    Object.assign(canvas.style, { left: `${x._offset}px`, top: `${y._offset}px`, width: `${x._length}px`, height: `${y._length}px` });
    const ctx = canvas.getContext("2d"), perX = wide / (span[1] - span[0]), perY = high / rows;
    ctx.clearRect(0, 0, wide, high);
    ctx.font = `${14 * dots}px Inter, 'Segoe UI', Arial, sans-serif`;
    [ctx.textAlign, ctx.textBaseline] = ["center", "middle"];
    const fills = table.map((look) => fillOf(ctx, look));
    for (let i = 0; i < looks.length; i++) {
      const look = table[looks[i]], [from, to, top, bottom] = boxes.subarray(4 * i, 4 * i + 4);
      const left = Math.max(from * perX, 0), right = Math.min(to * perX, wide), gap = right - left > 3 * dots ? look.gap * dots : 0;
      ctx.fillStyle = fills[looks[i]];
      ctx.fillRect(left + gap / 2, (top + 0.5) * perY, Math.max(right - left - gap, 0.5), (bottom - top) * perY);
      if (texts[i] && right - left > (8 * texts[i].length + 6) * dots) {
        ctx.fillStyle = look.ink;
        ctx.fillText(texts[i], (left + right) / 2, ((top + bottom) / 2 + 0.5) * perY);
      }
    }
    canvas.dataset.bars = looks.length;
    canvas.dataset.until = span[0] + boxes.reduce((last, value, i) => (i % 4 === 1 ? Math.max(last, value) : last), 0);
    if (this.tip.parentElement) this.point(this.last);  // the bars have moved on under the pointer
  }

  point(event) {
    this.last = event;
    this.tip.remove();
    if (!this.picture || !this.canvas.parentElement) return;
    const { span, rows, boxes, looks, table, packed } = this.picture, area = this.canvas.getBoundingClientRect();
    const at = ((event.clientX - area.left) / area.width) * (span[1] - span[0]);
    const row = ((event.clientY - area.top) / area.height) * rows - 0.5;
    let found = -1;
    for (let i = 0; i < looks.length; i++)
      if (boxes[4 * i] <= at && at < boxes[4 * i + 1] && boxes[4 * i + 2] <= row && row < boxes[4 * i + 3]) found = i;
    if (found < 0) return;
    const host = this.canvas.parentElement, frame = host.getBoundingClientRect(), look = table[looks[found]];
    this.tip.innerHTML = new TextDecoder().decode(packed).split("\n")[found];  // our own words: no text of a reader's
    Object.assign(this.tip.style, { background: look.fill, color: look.ink });
    host.append(this.tip);
    const left = event.clientX - frame.left, fits = left + 16 + this.tip.offsetWidth < frame.width;
    this.tip.style.left = `${fits ? left + 12 : left - 12 - this.tip.offsetWidth}px`;
    this.tip.style.top = `${event.clientY - frame.top - this.tip.offsetHeight / 2}px`;
  }
}

// What ipywidgets leaves without a name for a screen reader: the handle and the number of a slider.
function nameControls(view) {
  for (const slider of view.querySelectorAll(".widget-slider")) {
    const words = slider.querySelector(".widget-label")?.textContent;
    for (const part of slider.querySelectorAll(".noUi-handle, .widget-readout")) if (words) part.setAttribute("aria-label", words);
  }
}

// Says whether the chart in words is unfolded, and leaves it so when its text is renewed.
function keepUnfolded(view, held, say) {
  const words = () => view.querySelector("details.paci-lab-spoken");
  const fold = (event) => event.target === words() && event.target.open !== held.get("reading") && say("reading", event.target.open);
  const renewed = new MutationObserver(() => { if (words() && held.get("reading")) words().open = true; });
  view.addEventListener("toggle", fold, true);
  const place = words()?.parentElement;
  if (place) renewed.observe(place, { childList: true });
  return () => {
    view.removeEventListener("toggle", fold, true);
    renewed.disconnect();
  };
}

async function render({ model, el }) {
  const held = await model.widget_manager.get_model(model.get("of"));
  el.style.display = "none";
  const painter = new Painter(el);
  let waiting = 0;
  const say = (name, value) => {
    held.set(name, value);
    held.save_changes();
  };
  const look = () => {
    const page = pageIsDark(el.parentElement ?? document.body) ? "dark" : "light";
    if (held.get("page") !== page) say("page", page);
  };
  const draw = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => {
      const picture = held.get("picture");
      // An answer once the page has been painted, and none before plotly is there: until then it gets whole pictures.
      if (painter.show(picture)) setTimeout(() => say("seen", picture.number ?? 0));
    });
  };
  held.on("change:picture", draw);
  const watch = new MutationObserver(look);
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  let forget = () => {};
  requestAnimationFrame(() => {  // when the element is part of the page
    look();
    const view = el.closest(".paci-lab-view");
    if (!view) return;
    view.lang = held.get("lang");
    nameControls(view);
    forget = keepUnfolded(view, held, say);
  });
  draw();
  return () => {
    held.off("change:picture", draw);
    watch.disconnect();
    forget();
    painter.stop();
  };
}

export default { render };
